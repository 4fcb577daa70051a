"""The base classes of settings, and how configuration files are read and checked. Imports no role."""
