"""Turns rows of the store into batches, and writes tokens and scores of adopted rows into the store."""
