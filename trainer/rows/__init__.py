"""From rows of the store to batches, and what the trainer writes to rows besides."""
