"""Exception hierarchy.

    TrinityError              one line for the user: the problem and its remedy
    ├── ConfigError           a configuration or a command's arguments are wrong
    │   └── WrongSelect       a role's SELECT fails, or returns invalid rows
    ├── ImportFileError       a file to import cannot be read at all
    ├── DiskFull              the trainer has saved its steps and the disk is full
    ├── MissingExtra          the command needs an optional part of the installation
    ├── NotFound              a named run, row or file does not exist
    ├── SchemaMismatch        the database's schema has another version than this code
    │   └── StoreUpgraded     the store is being upgraded; roles exit and restart
    ├── DatabaseUnavailable   no database answers, or it asks for a retry; roles retry
    └── LeaseLost             another worker took over

The command line prints the message of a TrinityError and exits with 1. A role with a supervisor exits with
`service.GIVES_UP` after a WrongSelect or a DiskFull. Any other exception is a bug and keeps its traceback.
Subclasses for a single module are defined there: PromptTooLong and UntokenizableText in `prompts`,
NonFiniteLoss in `trainer.step`.
"""


class TrinityError(Exception):
    """A problem that the user can fix; the message is one line with the remedy."""


class ConfigError(TrinityError, ValueError):
    """A configuration or an argument is wrong."""


class WrongSelect(ConfigError):
    """A SELECT of the configuration fails, or returns invalid rows. Restarting the role does not help."""


class DiskFull(TrinityError):
    """The disk is full for further versions and checkpoints. Restarting the trainer does not help."""


class ImportFileError(TrinityError):
    """A file to import cannot be read."""


class MissingExtra(TrinityError):
    """A command needs an optional part of the installation."""

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(
            f"This needs the package {package}; install it with: pip install 'trinity-db[{extra}]'"
        )


class NotFound(TrinityError):
    """Something named does not exist."""


class SchemaMismatch(TrinityError):
    """The database's schema is not the one this code was written for."""


class StoreUpgraded(SchemaMismatch):
    """The store is being upgraded, or was, while this process ran. Roles exit and restart."""


class DatabaseUnavailable(TrinityError):
    """No database answers, or it aborted the transaction and asks for a retry (for example after a deadlock).

    Transient: a role waits and retries. Permanent problems, such as a full disk, are TrinityErrors.
    """


class LeaseLost(TrinityError):
    """Another worker took these rows, or this worker's place, after the lease ran out."""
