"""The algorithms: five compositions of named parts, each part a pure function.

A composition (`policy_gradient.py`, `mixed.py`, `preference.py`, `labels.py`, `supervised.py`) sees columns
(`interface.py`), never the model, the optimizer or the database; its parts are found by `parts.py`. Which
parts make a named algorithm stands in `trainer/recipes.py`; `compositions.py` makes the algorithm of a
configuration. To add a part: a function in its kind's file here, and a class of its options in
`trainer/options.py` or beside it.
"""
