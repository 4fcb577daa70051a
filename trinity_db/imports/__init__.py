"""Data that somebody else gathered: from a file to typed records, and from there into the store.

A row travels `readers` (a file's rows as JSON values) → `columns` (which column is the prompt) → `records`
(what a row means, checked, with a key made of its content) → the store. What cannot go on is a
`rejects.Rejected` with its reason; nothing is left out silently.
"""
