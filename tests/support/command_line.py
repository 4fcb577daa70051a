"""A command of trinity-db that runs in the process of the test: how it ended and what it printed."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int | str | None
    """A text is an error: Python prints it on stderr and exits with 1."""
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """What a command that succeeds prints."""
        assert (self.code, self.stderr) == (0, ""), self
        return self.stdout

    @property
    def complaint(self) -> str:
        """The one line with which a command fails."""
        assert isinstance(self.code, str), self
        assert (self.code[:7], self.code.count("\n")) == ("error: ", 0)
        return self.code[7:]


CommandLine = Callable[..., Done]
"""Runs trinity-db with these arguments."""
