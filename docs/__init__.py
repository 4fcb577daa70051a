"""The documents, and what writes their generated parts."""
