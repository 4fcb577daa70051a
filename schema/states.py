"""The states of everything that moves. docs/how-it-works/states.md draws the moves; the queries own them."""

from enum import StrEnum
from typing import Literal


class RunKind(StrEnum):
    """What a run is for."""

    TRAIN = "train"  #: a training effort with roles that work on it
    DATA = "data"  #: a data set that was imported; training runs adopt its rows


Draws = Literal["groups", "rows", "labels", "pairs"]
"""What the batches of a run are made of: its own rollout groups, imported rows that are not known to be bad,
imported rows with a reward that calls them good or bad, or pairs."""


class RunState(StrEnum):
    """Whether a run still wants work."""

    ACTIVE = "active"  #: roles work on it, or may; the trainer moves it on
    FINISHED = "finished"  #: the configured steps or epochs are done; explorers and processors end


class WorkerRole(StrEnum):
    """Which role a worker plays."""

    EXPLORE = "explore"
    PROCESS = "process"
    TRAIN = "train"


class GroupState(StrEnum):
    """How far a rollout group is. Whole groups are explored, paced and drawn."""

    OPEN = "open"  #: members are being explored; the explorer moves it on with the last arrival
    COMPLETE = "complete"  #: all members arrived or failed; the group processor moves it on
    READY = "ready"  #: every member is scored or dropped; the trainer draws it
    LEASED = "leased"  #: in a batch that a trainer works on
    TRAINED = "trained"  #: its batch is committed; reopened when a checkpoint is rolled back
    DROPPED = "dropped"  #: will not be trained on; table drop says why
    EVALUATING = "evaluating"  #: of an evaluation: waits for an explorer, or is being explored
    EVALUATED = "evaluated"  #: of an evaluation: all members arrived or failed; it is never drawn


class RolloutState(StrEnum):
    """How an attempt ended."""

    FINISHED = "finished"  #: has experiences
    FAILED = "failed"  #: has an error
    REFUSED = (
        "refused"  #: came after its group was complete or given to another explorer; kept for the record
    )


class ExperienceState(StrEnum):
    """How far an experience (or a preference) is."""

    RAW = "raw"  #: written by an explorer; the clean processor moves it on
    CLEAN = "clean"  #: fit to be scored; the score processor moves it on
    SCORED = "scored"  #: has a reward; the group processor moves it on with its group
    READY = "ready"  #: may be drawn; the trainer moves it on. Imported rows begin here
    LEASED = "leased"  #: in a batch that a trainer works on
    TRAINED = "trained"  #: used as often as allowed; back to ready when a checkpoint is rolled back
    DROPPED = "dropped"  #: will not be trained on; table drop says why
    EXPIRED = "expired"  #: too stale to be trained on; table drop says by how much
    EVALUATED = "evaluated"  #: of an evaluation: has been scored; it is never drawn


class BatchState(StrEnum):
    """Where a batch stands with the checkpoints."""

    LEASED = "leased"  #: drawn, being trained on
    COMMITTED = "committed"  #: its trainer step is done; durable once a policy version includes it
    REOPENED = "reopened"  #: no checkpoint includes it; its rows may be drawn again


class Outcome(StrEnum):
    """What a processor made of a row."""

    PASSED = "passed"  #: moved on
    DROPPED = "dropped"  #: judged unfit
    FAILED = "failed"  #: raised an error; tried again, or a dead letter at the last attempt
    REFUSED = "refused"  #: came after the row was given to another worker; changed nothing


class LabelState(StrEnum):
    """What a person made of a row or pair."""

    DRAFT = "draft"  #: claimed, and not judged yet
    SUBMITTED = "submitted"  #: judged
    DISCARDED = "discarded"  #: cannot be judged; counts as an answer without a value
    SKIPPED = "skipped"  #: left to others
