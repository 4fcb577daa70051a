"""Distributed training: communication between ranks, and sharded weights."""
