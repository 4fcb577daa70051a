"""Refused requests of an attempt's programs, for the error of the attempt if it fails."""

REASONS = 3  # different reasons that the error quotes
REASON = 300  # characters quoted of a reason


class Refusals:
    """Counts refused requests, and keeps the first reasons."""

    def __init__(self) -> None:
        self._number = 0
        self._reasons: list[str] = []

    def add(self, reason: str) -> None:
        self._number += 1
        if len(self._reasons) < REASONS and reason[:REASON] not in self._reasons:
            self._reasons.append(reason[:REASON])

    def added_to(self, error: str) -> str:
        """Return an error, followed by the refused requests."""
        if not self._number:
            return error
        requests = "1 request was" if self._number == 1 else f"{self._number} requests were"
        return f"{error}; {requests} refused: {' | '.join(self._reasons)}"
