"""Processors move rows on: clean, score, settle groups, pair. They know the store and nothing of models."""
