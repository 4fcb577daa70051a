"""The tables of the store, one file per family."""
