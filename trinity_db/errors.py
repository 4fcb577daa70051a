"""What can go wrong, as a small tree.

    TrinityError              one line for the user: what is wrong and what to do
    ├── ConfigError           a configuration or a command's arguments are wrong
    │   └── WrongSelect       a role's SELECT fails, or yields what it must not
    ├── ImportFileError       a file to import cannot be read at all
    ├── DiskFull              the trainer has saved its steps, and the disk has no room for more
    ├── MissingExtra          the command needs an optional part of the installation
    ├── NotFound              a run, row or file that was named does not exist
    ├── SchemaMismatch        the database's schema is not the one this code knows
    │   └── StoreUpgraded     it was, until an upgrade came; a role makes room
    ├── DatabaseUnavailable   no database answers, or it asks to try again; a role does
    └── LeaseLost             another worker took over

The command line prints the message of a TrinityError and exits with 1. A role that has a supervisor exits
with `service.GIVES_UP` after a WrongSelect or a DiskFull. Anything else is a bug and keeps its traceback.
Errors of one part stand there, below this tree: PromptTooLong and UntokenizableText in `prompts`,
NonFiniteLoss in `trainer.step`.
"""


class TrinityError(Exception):
    """Something the user can mend; the message says how, in one line."""


class ConfigError(TrinityError, ValueError):
    """A configuration or an argument is wrong."""


class WrongSelect(ConfigError):
    """A SELECT of the configuration fails, or yields what it must not. Its role would end again."""


class DiskFull(TrinityError):
    """The disk has no room for further versions and checkpoints. The trainer would stop again."""


class ImportFileError(TrinityError):
    """A file to import cannot be read."""


class MissingExtra(TrinityError):
    """A command needs an optional part of the installation."""

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(
            f"This needs the package {package}; install it with: pip install 'trinity-db[{extra}]'"
        )


class NotFound(TrinityError):
    """Something that was named does not exist."""


class SchemaMismatch(TrinityError):
    """The database's schema is not the one this code was written for."""


class StoreUpgraded(SchemaMismatch):
    """The store is being upgraded, or was, while this process worked. A role ends, and starts again."""


class DatabaseUnavailable(TrinityError):
    """No database answers, or it ended the transaction and asks to try again (as after a deadlock).

    It passes by itself: a role waits and tries again. What does not, as a full disk, is a TrinityError.
    """


class LeaseLost(TrinityError):
    """Another worker took these rows, or this worker's place, after the lease ran out."""
