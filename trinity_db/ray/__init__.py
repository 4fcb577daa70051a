"""Runs the roles of a run on the nodes of a Ray cluster.

Ray moves processes, Postgres moves rows: an actor runs one role as a process on its node, and holds no other
state. Ray does not fence a lost node; leases do.
"""
