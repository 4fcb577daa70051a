"""How values are said to people, wherever they read them."""

from datetime import datetime


def moment(at: datetime) -> str:
    """A time to the second, in the zone of the database's session."""
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"
