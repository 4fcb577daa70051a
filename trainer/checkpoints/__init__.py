"""Checkpoints on disk: writes them, owns the run's folder of them, and finds where a trainer starts."""
