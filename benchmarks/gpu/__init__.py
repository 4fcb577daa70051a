"""Measures a machine with a GPU: first whether it computes right, then how fast (`make gpu`)."""
