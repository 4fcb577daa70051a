"""Lists of steps: how rows pass through them, and what the results mean."""
