"""The algorithms: five compositions of named parts. Each part is a pure function.

A composition (`policy_gradient.py`, `mixed.py`, `preference.py`, `labels.py`, `supervised.py`) reads columns
(`interface.py`), and never the model, the optimizer or the database. `parts.py` finds its parts.
`trainer/recipes.py` lists the parts of each named algorithm. `compositions.py` makes the algorithm of a
configuration. To add a part, write a function in the file of its kind here, and mark it by `built_in.py`.
"""
