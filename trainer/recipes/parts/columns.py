"""Declares the columns that algorithms read: shape, meaning and origin.

Shapes: B sequences of a step or of a micro-batch, K the most trained tokens of one sequence. A row's trained
tokens are left-aligned, in order. The positional parameters of a part name the columns that it reads.
"""

from dataclasses import dataclass
from enum import Enum, auto


class Origin(Enum):
    """Source of a column."""

    PAYLOAD = auto()
    """Arrays stored with each row."""
    DRAW = auto()
    """Numbers that the draw recorded with each row. `source` is the attribute of `batches.Row`."""
    ATTEMPT = auto()
    """Position of each row in its attempt, selected by name by the statement read_attempts."""
    SCORES = auto()
    """Log-probabilities of another model, stored before the draw (table score)."""
    MODEL = auto()
    """A model that scores the rows before the gradient. `source` names the method of `Policy`."""
    FORWARD = auto()
    """Forward pass with gradient. Such a column always exists."""
    REQUEST = auto()
    """Forward pass with gradient, if a part reads the column."""
    MADE = auto()
    """Computed from other columns."""


STORED = {Origin.PAYLOAD, Origin.DRAW, Origin.ATTEMPT, Origin.SCORES}
"""Origins in the store. A step cannot compute such a column if rows lack it."""


@dataclass(frozen=True)
class Column:
    """Declaration of a column."""

    name: str
    shape: str
    meaning: str
    """Description for messages and documents."""
    origin: Origin
    source: str = ""
    readers: tuple[str, ...] = ()
    """Kinds of parts that may read the column."""


_ALL_TOKENS = ("policy loss", "correction", "kl", "distillation", "value", "supervised loss")

_DECLARED = (
    # Numbers per trained token. Log-probabilities are in nats.
    Column(
        "logprobs",
        "[B, K]",
        "log-probabilities of the policy that is trained",
        Origin.FORWARD,
        readers=("policy loss", "correction", "kl", "supervised loss"),
    ),
    Column(
        "mask",
        "[B, K] bool",
        "True where a token is trained; numbers elsewhere have no effect",
        Origin.PAYLOAD,
        readers=_ALL_TOKENS,
    ),
    Column(
        "old",
        "[B, K]",
        "log-probabilities that ratios are relative to: proximal where a correction reads it, else behaviour",
        Origin.MADE,
        readers=("policy loss", "kl", "distillation"),
    ),
    Column(
        "behaviour",
        "[B, K]",
        "log-probabilities of the policy that sampled them",
        Origin.PAYLOAD,
        readers=("policy loss", "correction", "distillation"),
    ),
    Column(
        "same_version",
        "[B, K] bool",
        "True where the token was sampled by the version whose weights the step starts from",
        Origin.PAYLOAD,
    ),
    Column(
        "proximal",
        "[B, K]",
        "log-probabilities of the policy at the start of the step, or interpolated between it and behaviour",
        Origin.MODEL,
        "logprobs",
        readers=("policy loss", "correction"),
    ),
    Column(
        "reference",
        "[B, K]",
        "log-probabilities of the model that the policy is compared with",
        Origin.MODEL,
        "reference_logprobs",
        readers=("policy loss", "kl"),
    ),
    Column(
        "teacher",
        "[B, K]",
        "log-probabilities of a teacher, stored by the step teacher",
        Origin.SCORES,
        readers=("policy loss", "distillation"),
    ),
    Column(
        "entropy",
        "[B, K]",
        "entropy in nats, with a gradient only for an entropy bonus",
        Origin.REQUEST,
        readers=("policy loss", "supervised loss"),
    ),
    Column(
        "correct",
        "[B, K] bool",
        "True where no token is more likely",
        Origin.FORWARD,
        readers=("supervised loss",),
    ),
    Column(
        "values",
        "[B, K]",
        "the reward that the value head expects from a token on",
        Origin.MODEL,
        "values",
        readers=("value",),
    ),
    Column("old_values", "[B, K]", "values at the start of the step", Origin.MADE),
    Column(
        "returns",
        "[B, K]",
        "the reward of a row from a token on, estimated by the value part",
        Origin.MADE,
    ),
    # Numbers that the draw recorded with each row.
    Column(
        "advantages",
        "[B, 1] or [B, K]",
        "advantage of a row over the rows that it is compared with",
        Origin.DRAW,
        "advantage",
        readers=("policy loss", "correction"),
    ),
    Column(
        "rewards",
        "[B]",
        "the reward of a row at the draw",
        Origin.DRAW,
        "reward",
        readers=("advantage", "policy loss"),
    ),
    Column(
        "groups",
        "[B]",
        "equal numbers for the rows of one rollout group",
        Origin.DRAW,
        "group_id",
        readers=("advantage",),
    ),
    Column(
        "staleness",
        "[B]",
        "versions between a row's policy and the policy being trained",
        Origin.DRAW,
        "staleness",
        readers=("policy loss", "correction"),
    ),
    Column("margins", "[B]", "the margin of a row's pair, derived or imported", Origin.DRAW, "margin"),
    Column("weight", "[B]", "weight of a row in the loss", Origin.DRAW, "weight"),
    Column("is_expert", "[B] bool", "True for an imported row among rows of rollout groups", Origin.DRAW),
    # Position of each row among the attempts of its group.
    Column(
        "rollouts", "[B]", "equal numbers for the rows of one attempt", Origin.ATTEMPT, readers=("advantage",)
    ),
    Column(
        "steps", "[B]", "positions of rows in their attempts, from 0", Origin.ATTEMPT, readers=("advantage",)
    ),
    Column(
        "states",
        "[B]",
        "equal numbers for one state of the environment",
        Origin.ATTEMPT,
        readers=("advantage",),
    ),
    Column(
        "greedy",
        "[B] bool",
        "True for an attempt that was sampled at temperature 0",
        Origin.ATTEMPT,
        readers=("advantage",),
    ),
    Column(
        "shares_reward",
        "[B] bool",
        "True where each row of an attempt has the reward of the whole attempt",
        Origin.ATTEMPT,
        readers=("advantage",),
    ),
    Column(
        "mismatched",
        "[B]",
        "log(policy / reference) of another row's response to a row's prompt, at the start of the step",
        Origin.MADE,
    ),
)

COLUMNS: dict[str, Column] = {column.name: column for column in _DECLARED}
"""Columns by name."""


def names_of(origin: Origin) -> frozenset[str]:
    """Return the names of the columns with this origin."""
    return frozenset(name for name, column in COLUMNS.items() if column.origin is origin)
