"""One script a peer, run by `benchmarks/peer.py` with the interpreter of `.venv-bench`."""
