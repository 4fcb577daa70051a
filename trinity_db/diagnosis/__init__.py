"""What is wrong with an installation, a server and a store: checks that only look.

`finding` says what a check returns; `installation`, `server`, `horizon`, `tables`, `work` and `learning` hold
the checks, a function each; `doctor` runs them. The command line prints what they find, and the page shows
what they find of runs.
"""
