"""Diagnosis of an installation, a server and a store, with read-only checks.

`finding` defines the result of a check; `installation`, `server`, `horizon`, `tables`, `work` and `learning`
contain the checks, a function each; `doctor` runs them. The command prints all findings, and the page shows
those about runs.
"""
