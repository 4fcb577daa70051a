"""The parts that algorithms are composed of, each a pure function, chosen by name in a configuration.

`kinds.py` finds the parts of each kind, or a user's own. `built_in.py` derives sections of the configuration
from their signatures. `columns.py` declares their inputs. To add a part, write a function in the file of its
kind and mark it with `built_in`. These files import torch only inside functions, because configurations are
read without it.
"""
