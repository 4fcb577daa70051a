"""Lets several processes train one policy together: their exchange, and sharded weights."""
