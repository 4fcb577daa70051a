"""One run: its configuration, and how its roles are checked and started."""
