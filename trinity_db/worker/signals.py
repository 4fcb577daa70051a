"""Signals on which a role or a command shuts down cleanly and releases its work."""

import signal

ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def endings() -> list[signal.Signals]:
    """Return the signals that end this process: SIGHUP is ignored under nohup."""
    return [
        number for number in ENDINGS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]
