"""The trainer's loop: setup, ranks in step, run length, held-out rows, publishing, uploads."""
