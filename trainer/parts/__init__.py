"""The parts that algorithms are composed of, each a pure function. A configuration chooses them by name.

`kinds.py` finds the parts of each kind, or a user's own. `built_in.py` makes the sections of a configuration
from their signatures. `columns.py` declares what parts read. To add a part, write a function in the file of
its kind here, and mark it by `built_in.py`. These files import torch only inside functions, because a
configuration is read without it.
"""
