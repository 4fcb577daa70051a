"""The algorithms: five compositions of the parts in `trainer/parts/`.

A composition (`policy_gradient.py`, `mixed.py`, `preference.py`, `labels.py`, `supervised.py`) reads columns
(`interface.py`), and never the model, the optimizer or the database. `trainer/recipes.py` lists the parts of
each named algorithm. `compositions.py` makes the algorithm of a configuration.
"""
