"""The roles of a run on the machines of a Ray cluster.

Ray moves processes, Postgres moves rows: an actor runs one role as a process of its machine, and holds
nothing else. Ray does not fence a machine that it has lost; leases do.
"""
