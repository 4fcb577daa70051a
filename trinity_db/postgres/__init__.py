"""Connections to the store: its address, its schema, its logins, and the embedded server."""
