"""The signals that end a role or a command in its own way, after which it gives back what it holds."""

import signal

ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def endings() -> list[signal.Signals]:
    """Those that end this process. Under nohup, a terminal that closes ends it no more."""
    return [one for one in ENDINGS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
