"""Kills the programs of a dead explorer. Runs as a separate process, started by its path.

It reads lines from standard input: `+ 123` when a process group starts, `- 123` when it ends. End of input
means that the explorer has exited, and the remaining groups are killed. It imports only the standard library,
so that it starts within milliseconds.
"""

import os
import signal
import sys


def main() -> None:
    """Track process groups until the end of input, then kill them."""
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)  # it must outlive the explorer
    groups: set[int] = set()
    for line in sys.stdin:
        sign, number = line.split()
        (groups.add if sign == "+" else groups.discard)(int(number))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except OSError:  # already gone
            continue


if __name__ == "__main__":
    main()
