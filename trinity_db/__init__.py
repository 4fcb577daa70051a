"""trinity-db: reinforcement fine-tuning with the experience database as the contract.

The core of the package. The roles (`explorer`, `processors`, `trainer`) and the contract
itself (`schema`) are folders beside this one, linked in here.
"""

__version__ = "0.1.0"
