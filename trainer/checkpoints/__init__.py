"""Checkpoints on disk, the run's own folder of them, and where a trainer starts."""
