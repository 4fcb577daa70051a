"""Reports of runs and rows in the store, for commands and for the page."""
