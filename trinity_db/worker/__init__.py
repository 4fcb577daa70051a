"""The process of a role: registration, heartbeats, signals and CPU cores. Imports no role."""
