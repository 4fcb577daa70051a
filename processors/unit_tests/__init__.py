"""Unit tests of a task: the forms in which data sets write them, and the comparison of results."""
