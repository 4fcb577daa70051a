"""Reads answers: those that a task accepts, and the final answer of a response."""
