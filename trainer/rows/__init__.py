"""Turns rows of the store into batches, and stores tokens and scores of adopted rows."""
