"""The columns that algorithms read. Each is declared here once: shape, meaning and origin.

Shapes: B sequences of a step or of a micro-batch, K the most trained tokens of one sequence. A row's trained
tokens stand at its left, in order. The positional parameters of a part name the columns that it reads.
"""

from dataclasses import dataclass
from enum import Enum, auto


class Origin(Enum):
    """Where a column comes from."""

    PAYLOAD = auto()
    """From the arrays that are stored with each row."""
    DRAW = auto()
    """From the numbers that the draw recorded with each row. `source` is the attribute of `batches.Row`."""
    ATTEMPT = auto()
    """From the place of each row in its attempt. The statement read_attempts selects it by its name."""
    SCORES = auto()
    """From the log-probabilities of another model that were stored before the draw (table score)."""
    MODEL = auto()
    """From a model that scores the rows before the gradient. `source` names the method of `Policy`."""
    FORWARD = auto()
    """From the forward pass with gradient. Such a column is always there."""
    REQUEST = auto()
    """From the forward pass with gradient, if a part reads it."""
    MADE = auto()
    """From other columns."""


STORED = {Origin.PAYLOAD, Origin.DRAW, Origin.ATTEMPT, Origin.SCORES}
"""Origins in the store. If rows lack such a column, a step cannot compute it."""


@dataclass(frozen=True)
class Column:
    """One column."""

    name: str
    shape: str
    meaning: str
    """The meaning in words, for messages and documents."""
    origin: Origin
    source: str = ""
    readers: tuple[str, ...] = ()
    """Kinds of parts that may read it."""


_ALL_TOKENS = ("policy loss", "correction", "kl", "distillation", "value", "supervised loss")

_DECLARED = (
    # Numbers of each trained token. Log-probabilities are in nats.
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
        "log-probabilities of the policy at the start of the step, or interpolated "
        "between that one and behaviour",
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
        "log-probabilities of a teacher, as the step teacher stored them",
        Origin.SCORES,
        readers=("policy loss", "distillation"),
    ),
    Column(
        "entropy",
        "[B, K]",
        "entropy in nats, with a gradient only where a bonus asks for it",
        Origin.REQUEST,
        readers=("policy loss", "supervised loss"),
    ),
    Column(
        "correct",
        "[B, K] bool",
        "True where no token is likelier",
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
        "the reward of a row from a token on, as the value part estimates it",
        Origin.MADE,
    ),
    # Numbers that the draw recorded with each row.
    Column(
        "advantages",
        "[B, 1] or [B, K]",
        "how much better a row is than the rows that it is compared with",
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
        "versions between a row's policy and the one that is trained",
        Origin.DRAW,
        "staleness",
        readers=("policy loss", "correction"),
    ),
    Column(
        "margins", "[B]", "the margin of a row's pair, as it was derived or imported", Origin.DRAW, "margin"
    ),
    Column("weight", "[B]", "how much a row counts in the loss", Origin.DRAW, "weight"),
    Column("is_expert", "[B] bool", "True for an imported row beside those of rollout groups", Origin.DRAW),
    # The place of each row among the attempts of its group.
    Column(
        "rollouts", "[B]", "equal numbers for the rows of one attempt", Origin.ATTEMPT, readers=("advantage",)
    ),
    Column(
        "steps", "[B]", "places of rows in their attempts, from 0 on", Origin.ATTEMPT, readers=("advantage",)
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
        "mismatched",
        "[B]",
        "log(policy / reference) of another row's response to a row's prompt, at the start of the step",
        Origin.MADE,
    ),
)

COLUMNS: dict[str, Column] = {column.name: column for column in _DECLARED}
"""By name."""


def names_of(origin: Origin) -> frozenset[str]:
    """The names of the columns with this origin."""
    return frozenset(name for name, column in COLUMNS.items() if column.origin is origin)
