"""What the store says of runs and rows, for commands and for the page alike."""
