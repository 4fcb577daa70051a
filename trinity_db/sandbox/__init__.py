"""Confines a process before it runs code that a model wrote: Landlock, seccomp and limits, without root.

`confine` cannot be undone, and holds for all that the process does later. What it cannot do is an error, so
that nothing runs less confined than was asked for.
"""
