"""The store's verbs as state machines, for tests/integration/test_store_machine*.py.

history    the model of versions and batches, of every run
store      the model of an online run: groups, rollouts and rows before their batches
passes     the model of a run over data sets whose rows and pairs are judged, dropped and derived meanwhile
snapshot   what is read back of a run, and what must never be found in it
trainer    the machine's part that every run has: a trainer that dies and is replaced
"""
