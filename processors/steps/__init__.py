"""The built-in steps, one file a duty, each marked by `@step`; `lists.py` says which list has which file."""
