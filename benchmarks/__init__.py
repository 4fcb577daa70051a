"""How fast the store is, against bare Postgres and against peers; see benchmarks/README.md."""
