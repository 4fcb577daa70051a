"""Kills the programs of an explorer that died. Run as a process of its own, by its path.

It reads lines from its standard input: `+ 123` for a process group that began, `- 123` for one that ended.
When the input ends, the explorer has ended, and the groups that are left are killed. It imports nothing but
the standard library, so that it starts in some milliseconds.
"""

import os
import signal
import sys


def main() -> None:
    """Remember groups until the input ends."""
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)  # it ends when the explorer has
    groups: set[int] = set()
    for line in sys.stdin:
        sign, number = line.split()
        (groups.add if sign == "+" else groups.discard)(int(number))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:  # it has ended
            continue


if __name__ == "__main__":
    main()
