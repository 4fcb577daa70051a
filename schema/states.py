"""States of all rows. docs/how-it-works/states.md shows the transitions; the queries perform them."""

from enum import StrEnum
from typing import Literal


class RunKind(StrEnum):
    """Kind of a run."""

    TRAIN = "train"  #: a training effort with workers
    DATA = "data"  #: an imported data set; training runs adopt its rows


Draws = Literal["groups", "rows", "labels", "pairs"]
"""Unit of a run's batches: its own rollout groups, imported rows not known to be bad, imported rows whose
reward labels them good or bad, or pairs."""


class RunState(StrEnum):
    """Whether a run still has work to do."""

    ACTIVE = "active"  #: workers may work on it; the trainer finishes it
    FINISHED = "finished"  #: the configured steps or epochs are complete; explorers and processors exit


class WorkerRole(StrEnum):
    """Role of a worker."""

    EXPLORE = "explore"
    PROCESS = "process"
    TRAIN = "train"


class GroupState(StrEnum):
    """State of a rollout group. Groups are explored, paced and drawn as a whole."""

    OPEN = "open"  #: members are being explored; completed by the explorer with the last arrival
    COMPLETE = "complete"  #: all members arrived or failed; settled by the group processor
    READY = "ready"  #: every member is scored or dropped; drawn by the trainer
    LEASED = "leased"  #: in a batch being trained on
    TRAINED = "trained"  #: its batch is committed; reopened if a checkpoint is rolled back
    DROPPED = "dropped"  #: will not be trained on; the reason is in table drop
    EVALUATING = "evaluating"  #: evaluation only: waits for an explorer, or is being explored
    EVALUATED = "evaluated"  #: evaluation only: all members arrived or failed; never drawn


class RolloutState(StrEnum):
    """Result of an attempt."""

    FINISHED = "finished"  #: has experiences
    FAILED = "failed"  #: has an error
    REFUSED = (
        "refused"  #: arrived after its group was complete or held by another explorer; kept for the record
    )


class ExperienceState(StrEnum):
    """State of an experience or a preference."""

    RAW = "raw"  #: written by an explorer; next: the clean processor
    CLEAN = "clean"  #: passed the clean steps; next: the score processor
    SCORED = "scored"  #: has a reward; settled with its group by the group processor
    READY = "ready"  #: may be drawn by the trainer. Imported rows start here
    LEASED = "leased"  #: in a batch being trained on
    TRAINED = "trained"  #: used as often as allowed; ready again if a checkpoint is rolled back
    DROPPED = "dropped"  #: will not be trained on; the reason is in table drop
    EXPIRED = "expired"  #: too stale to be trained on; the staleness is in table drop
    EVALUATED = "evaluated"  #: evaluation only: scored; never drawn


class BatchState(StrEnum):
    """State of a batch with respect to checkpoints."""

    LEASED = "leased"  #: drawn, being trained on
    COMMITTED = "committed"  #: its trainer step is complete; durable once a policy version includes it
    REOPENED = "reopened"  #: no checkpoint includes it; its rows may be drawn again


class Outcome(StrEnum):
    """A processor's verdict on a row."""

    PASSED = "passed"  #: moved to the next state
    DROPPED = "dropped"  #: judged unfit
    FAILED = "failed"  #: raised an error; retried, or a dead letter at the last attempt
    REFUSED = "refused"  #: too late: another worker held the row; changed nothing


class LabelState(StrEnum):
    """A person's verdict on a row or pair."""

    DRAFT = "draft"  #: claimed, not judged yet
    SUBMITTED = "submitted"  #: judged
    DISCARDED = "discarded"  #: cannot be judged; counts as an answer without a value
    SKIPPED = "skipped"  #: left to others
