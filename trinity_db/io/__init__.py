"""Durable writes, limits of HTTP connections, and JSON that is parsed without blocking other threads."""
