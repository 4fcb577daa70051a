"""Checks of what runs learn from: a run that works, and yet does not learn.

Each looks at the newest rows or steps of the runs with a living worker, or of the one run that it is given,
whatever its state.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from trinity_db.diagnosis.finding import Connection, Finding, ok, warn
from trinity_db.inspection import status
from trinity_db.schema.queries import query

GROUPS = 100  # the newest of a run: some steps of it, so that what was mended an hour ago is told no longer
DEPTH = 20_000  # newest groups of the store: a run with none of them rests; to look for it takes 20 ms
ROWS = 200  # the same as GROUPS, in rows
ATTEMPTS = 100  # the same, in attempts
FEWEST = 20  # of fewer, a share says little
EQUAL_SHARE = 0.8  # then four of five groups have the advantage 0, and their sampling teaches nothing
EQUAL = 1e-6  # the mean of three rewards of 0.1 is not 0.1; as learning_groups has it of the variance
DROPPED_SHARE = (
    0.8  # dynamic sampling drops half by intention; this is five rows sampled for one that is learned from
)
CLEANED_SHARE = 0.2  # above it, what the steps drop is missing from the policy gradient
FAILED_SHARE = 0.5  # an unsteady tool fails now and then; half of all attempts is a program that is wrong
ERROR = 200  # characters of an error, which begins with its kind
STEPS = 10  # a single step is noise
COLLAPSED_SHARE = 0.1  # of the entropy at the beginning: attempts at a task are then nearly the same
OUTSIDE_SHARE = 0.05  # bfloat16 alone puts less than a hundredth of the tokens outside 0.8 to 1.2

VISIBLE_SHARE = 0.5  # of the update; fixed thresholds show all of it, rounding to nearest a fiftieth or less

ENTROPY = "entropy"
OUTSIDE = "sampling/engine_ratio_outside"
VISIBLE = "publish/visible_last_ten"


def equal_rewards(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Groups whose rewards are equal: within them no attempt is better than another.

    Groups in which every attempt solved the task are the aim of training: they are information.
    """
    found = []
    for row in connection.execute(query("learning_groups"), _newest(run_id)):
        unsolved, equal = row["groups"] - row["solved"], row["equal"] - row["solved"]
        if unsolved >= FEWEST and equal >= EQUAL_SHARE * unsolved:
            solved = f", and {row['solved']} more are solved by every attempt" if row["solved"] else ""
            text = (
                f"run '{row['run']}': rewards are equal in {equal} of its last {row['groups']} "
                f"groups, in most of them {row['reward']:.3g}{solved}"
            )
            remedy = (
                "look at the responses: a reward function that tells them apart, easier or harder tasks "
                "(explorer.tasks: {name: difficulty}), or processors.group.drop_equal_rewards"
            )
            reward = row["reward"]
            shown = {"reward_from": round(reward - EQUAL, 7), "reward_to": round(reward + EQUAL, 7)}
            found.append(warn("learn rewards", text, remedy, row["run"], shown))
        elif _is_solved(row):
            text = (
                f"run '{row['run']}' solves its tasks: every attempt did in {row['solved']} of its last "
                f"{row['groups']} groups"
            )
            found.append(ok("learn rewards", text))
    return found or [ok("learn rewards", "rewards differ within the newest groups")]


def missing_rewards(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Groups without any reward, although steps of the run are to give some."""
    found = []
    for row in connection.execute(query("learning_groups"), _newest(run_id)):
        if row["is_scored"] and row["kept"] >= FEWEST and row["unrewarded"] == row["kept"]:
            text = f"run '{row['run']}': none of its last {row['kept']} groups has a reward"
            remedy = (
                "let a step under processors.score return a number, then: trinity-db rescore " + row["run"]
            )
            found.append(warn("learn judged", text, remedy, row["run"], {}))
    return found or [ok("learn judged", "the newest groups have rewards where steps give some")]


def drops(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Runs nearly all of whose rows are dropped or expire, with the reason of most."""
    found = []
    rows = connection.execute(query("learning_drops"), _newest(run_id)).fetchall()
    for run, grouped in groupby(rows, lambda row: row["run"]):
        reasons = {row["reason"]: row["rows"] for row in grouped}
        decided, kept = sum(reasons.values()), reasons.pop(None, 0)
        if decided >= FEWEST and decided - kept >= DROPPED_SHARE * decided:
            reason, most = next(iter(reasons.items()))
            text = (
                f"run '{run}': {decided - kept} of its last {decided} rows will not be trained on, "
                f"{most} of them for {reason}"
            )
            # What expired has no reason of its own in `drop`.
            shown = {"state": reason} if reason == "expired" else {"reason": reason}
            found.append(warn("learn drops", text, f"trinity-db status {run}", run, shown))
    return found or [ok("learn drops", "most of the newest rows are kept")]


def cleaned(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Runs whose clean steps drop many rows, with the reason of most; expired rows are not counted."""
    found = []
    rows = connection.execute(query("learning_cleaned"), _newest(run_id)).fetchall()
    for run, grouped in groupby(rows, lambda row: row["run"]):
        reasons = {row["reason"]: row["rows"] for row in grouped}
        total = sum(reasons.values())
        reasons.pop(None, None)
        dropped = sum(reasons.values())
        if total >= FEWEST and dropped > CLEANED_SHARE * total:
            reason, most = next(iter(reasons.items()))
            text = (
                f"run '{run}': clean steps dropped {dropped} of its last {total} rows, {most} of them for "
                f"{reason}; the policy learns nothing from them"
            )
            remedy = (
                "if the policy is to do this less, leave the step out of processors.clean by --change, so "
                "that a reward says what such a response is worth"
            )
            found.append(warn("learn clean", text, remedy, run, {"reason": reason}))
    return found or [ok("learn clean", "clean steps keep most of the newest rows")]


def attempts(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Attempts that end with an error."""
    found = []
    for row in connection.execute(query("learning_attempts"), _newest(run_id)):
        if row["attempts"] >= FEWEST and row["failed"] >= FAILED_SHARE * row["attempts"]:
            error = " ".join(row["error"].split())[:ERROR]
            text = (
                f"run '{row['run']}': {row['failed']} of its last {row['attempts']} attempts failed: {error}"
            )
            remedy = "mend the workflow or the environment; its log has the whole error"
            found.append(warn("learn attempts", text, remedy, row["run"], {"group": row["group_id"]}))
    return found or [ok("learn attempts", "most of the newest attempts end well")]


def entropy(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """A policy whose attempts are nearly the same, although they do not solve the tasks."""
    found = []
    groups = connection.execute(query("learning_groups"), _newest(run_id)).fetchall()
    solved = {row["run"] for row in groups if _is_solved(row)}
    values = {"run_id": run_id, "name": ENTROPY, "steps": STEPS}
    for row in connection.execute(query("learning_metric"), values):
        if row["last"] < COLLAPSED_SHARE * row["first"] and row["run"] not in solved:
            text = (
                f"run '{row['run']}': entropy fell from {row['first']:.2g} to {row['last']:.2g} nats a token "
                f"by step {row['step']}, so that attempts at a task are nearly the same"
            )
            remedy = "lower trainer.learning_rate, or raise algorithm.entropy_coefficient, by --change"
            found.append(warn("learn entropy", text, remedy, row["run"], {"metric": ENTROPY}))
    return found or [ok("learn entropy", "no policy has lost most of its entropy")]


def log_probabilities(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """An engine that computes other log-probabilities than the trainer, for the same weights."""
    found = []
    values = {"run_id": run_id, "name": OUTSIDE, "steps": STEPS}
    for row in connection.execute(query("learning_metric"), values):
        if row["last"] > OUTSIDE_SHARE:
            text = (
                f"run '{row['run']}': for the same weights, engine and trainer differ by more than a fifth "
                f"on {row['last']:.1%} of the tokens, at the last steps to {row['step']}"
            )
            remedy = "let both compute in the same dtype, or correct for it: algorithm.correction"
            found.append(warn("learn engine", text, remedy, row["run"], {"metric": OUTSIDE}))
    return found or [ok("learn engine", "engines and trainers agree on log-probabilities")]


def hidden_updates(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Versions in 16 bits that show less than half of the update of the last ten versions."""
    found = []
    for row in connection.execute(query("learning_metric"), {"run_id": run_id, "name": VISIBLE, "steps": 1}):
        if row["last"] < VISIBLE_SHARE:
            text = (
                f"run '{row['run']}': its versions show {row['last']:.1%} of the update of the last ten "
                f"versions, as of step {row['step']}: explorers sample an older policy"
            )
            remedy = (
                "set trainer.publish_dtype: float32 by --change, unless the engine itself rounds to nearest; "
                "or raise trainer.learning_rate, if updates or weight decay are too small for 16 bits: "
                "docs/guides/precision.md"
            )
            found.append(warn("learn visible", text, remedy, row["run"], {"metric": VISIBLE}))
    return found or [ok("learn visible", "versions show the updates of their trainers")]


def waiting(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Runs where one side waits for the other much of its time."""
    found = []
    for row in connection.execute(query("learning_runs"), {"run_id": run_id}).fetchall():
        shares = status.measured(connection, row["id"])["waiting"]
        said, remedy = status.balance(shares)
        if said and remedy:
            trainer_waits = shares["trainer"] >= status.MUCH_WAITING
            shown = {"metric": "time/wait_for_batch" if trainer_waits else "explore/wait_for_training"}
            found.append(warn("learn pace", f"run '{row['run']}' waits: {said}", remedy, row["run"], shown))
    return found or [ok("learn pace", "explorers and trainers keep pace with one another")]


def _is_solved(row: Mapping[str, Any]) -> bool:
    """Whether every attempt solved its task in nearly all of the newest groups of a run."""
    return bool(row["groups"] >= FEWEST and row["solved"] >= EQUAL_SHARE * row["groups"])


def _newest(run_id: int | None) -> dict[str, int | None]:
    """How much is looked at."""
    return {"run_id": run_id, "groups": GROUPS, "rows": ROWS, "attempts": ATTEMPTS, "depth": DEPTH}


CHECKS = (
    *(equal_rewards, missing_rewards, drops, cleaned, attempts),
    *(entropy, log_probabilities, hidden_updates, waiting),
)
