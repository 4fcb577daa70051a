"""Processors clean, score, settle and pair rows. They use the store and do not depend on models."""
