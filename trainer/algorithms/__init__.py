"""The algorithms: compositions of the parts in `trainer/recipes/parts/`.

A composition (`policy_gradient.py`, `mixed.py`, `preference.py`, `reward_model.py`, `labels.py`,
`supervised.py`) reads columns (`interface.py`), and does not depend on the model, the optimizer or the
database. `trainer/recipes/recipes.py` lists the parts of each named algorithm. `compositions.py` creates the
algorithm of a configuration.
"""
