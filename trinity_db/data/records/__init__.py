"""Records: which column of a row means what, each record checked."""
