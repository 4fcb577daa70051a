"""Names of the standard library that a model's code may use without importing them.

Graders of APPS, TACO and LiveCodeBench import these modules before a solution, so solutions omit imports,
most often of typing. The names are added to the built-in ones: a solution that assigns a name hides the
imported one, and a function that only exists here does not count as defined by a solution.
"""

import builtins
from functools import cache
from typing import Any

# In the order of LiveCodeBench's grader: names of builtins and typing replace those of operator and io.
_ALL_NAMES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
)
_MODULES = (*_ALL_NAMES, "time", "fractions", "decimal")


@cache
def prelude() -> dict[str, Any]:
    """Return the built-in names and those of the imported modules."""
    names: dict[str, Any] = {}
    for module in _ALL_NAMES:
        exec(f"from {module} import *", names)
    for module in _MODULES:
        exec(f"import {module}", names)
    return {**names, **vars(builtins)}
