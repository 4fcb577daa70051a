"""Confines a process before it runs code written by a model: Landlock, seccomp and limits, without root.

`confine` cannot be undone, and applies to everything that the process does later. A missing feature is an
error, so that nothing runs with less confinement than requested.
"""
