"""Child processes of steps: what may hang, take all memory or do harm runs there, and is killed."""
