"""The store as a Python library: `trinity_db.connect` and what it returns.

Each method is one or more whole transactions; none stays open while the caller works. Imports of pyarrow,
pandas and torch are inside the methods that need them.
"""
