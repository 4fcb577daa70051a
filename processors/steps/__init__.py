"""Built-in steps, grouped by purpose and marked with `@step`; `lists.py` assigns the modules to lists."""
