"""Checks of learning: runs that work, but do not learn.

Each check reads the newest rows or steps of the runs with a living worker, or of one given run whatever its
state.
"""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from psycopg.rows import DictRow

from trinity_db.insight import status
from trinity_db.insight.checks.finding import Connection, Finding, ok, warn
from trinity_db.schema.queries import query

GROUPS = 100  # newest groups of a run: a few steps, so that problems fixed an hour ago are not reported
DEPTH = 20_000  # newest groups of the store: a run without any of them is inactive; the search takes 20 ms
ROWS = 200  # the same as GROUPS, in rows
ATTEMPTS = 100  # the same, in attempts
FEWEST = 20  # with fewer, a share means little
EQUAL_SHARE = 0.8  # four of five groups then have advantage 0, and nothing is learned from them
EQUAL = 1e-6  # the mean of three rewards of 0.1 is not 0.1; as for the variance in learning_groups
DROPPED_SHARE = 0.8  # dynamic sampling drops half on purpose; this is five sampled rows per trained row
CLEANED_SHARE = 0.2  # above it, dropped rows are missing from the policy gradient
FAILED_SHARE = 0.5  # a flaky tool fails now and then; failures in half of all attempts are a bug
ERROR = 200  # characters of an error, which begins with its kind
STEPS = 10  # a single step is noise
COLLAPSED_SHARE = 0.1  # share of the initial entropy: attempts at a task are then nearly the same
OUTSIDE_SHARE = 0.05  # bfloat16 alone puts less than a hundredth of the tokens outside 0.8 to 1.2

VISIBLE_SHARE = 0.5  # share of the update; fixed thresholds show all of it, rounding to nearest 2 % or less

RECENT = 3  # steps of a change that is too fast: a run is lost after a few
KL = 0.1  # nats per token. A step of SmolLM2-135M at 1e-5 makes 0.005, at 1e-4 0.3; PPO stops at 0.01 to 0.03
CLIPPED_SHARE = 0.2  # share of the tokens; grpo clips 0.1 % and gspo 15 % in arXiv 2507.18071
CLIPPED_KL = 0.01  # nats; the narrow range of gspo clips tokens whose policy hardly differs
STALE = 1.0  # versions; above it rows are far from the policy whatever the step
FALL_STEPS = 5
FALL_DEPTH = 1000  # newest steps among which the best are searched
FALL_ERRORS = 6.0  # the best of 200 windows is 3 standard errors above their mean without any change
CUT_SHARE = 0.5  # responses that are cut mostly earn nothing

ENTROPY = "entropy"
OUTSIDE = "sampling/engine_ratio_outside"
VISIBLE = "publish/visible_last_ten"
APPROX_KL = "approx_kl"
CLIP_RATIO = "clip_ratio"
STALENESS = "sample/staleness_mean"
REWARD = "reward"
CUT = "completions/clipped_ratio"


def equal_rewards(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for groups with equal rewards: within them no attempt is better than another.

    Groups in which every attempt solved the task are the aim of training, and are only information.
    """
    findings = []
    for row in connection.execute(query("learning_groups"), _newest(run_id)):
        unsolved, equal = row["groups"] - row["solved"], row["equal"] - row["solved"]
        if unsolved >= FEWEST and equal >= EQUAL_SHARE * unsolved:
            solved = f", and {row['solved']} more are solved by every attempt" if row["solved"] else ""
            text = (
                f"run '{row['run']}': rewards are equal in {equal} of its last {row['groups']} "
                f"groups, in most of them {row['reward']:.3g}{solved}"
            )
            remedy = (
                "check the responses: use a reward function that tells them apart, easier or harder tasks "
                "(explorer.tasks: {name: difficulty}), or processors.group.drop_equal_rewards"
            )
            reward = row["reward"]
            shown = {"reward_from": round(reward - EQUAL, 7), "reward_to": round(reward + EQUAL, 7)}
            findings.append(warn("learn rewards", text, remedy, row["run"], shown))
        elif _is_solved(row):
            text = (
                f"run '{row['run']}' solves its tasks: every attempt did in {row['solved']} of its last "
                f"{row['groups']} groups"
            )
            findings.append(ok("learn rewards", text))
    return findings or [ok("learn rewards", "rewards differ within the newest groups")]


def missing_rewards(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for groups without rewards in runs whose steps should give some."""
    findings = []
    for row in connection.execute(query("learning_groups"), _newest(run_id)):
        if row["is_scored"] and row["kept"] >= FEWEST and row["unrewarded"] == row["kept"]:
            text = f"run '{row['run']}': none of its last {row['kept']} groups has a reward"
            remedy = (
                "let a step under processors.score return a number, then: trinity-db rescore " + row["run"]
            )
            findings.append(warn("learn judged", text, remedy, row["run"], {}))
    return findings or [ok("learn judged", "the newest groups have the rewards that steps give")]


def drops(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for runs in which nearly all rows are dropped or expire, with the main reason."""
    findings = []
    rows = connection.execute(query("learning_drops"), _newest(run_id)).fetchall()
    for run, grouped in groupby(rows, lambda row: row["run"]):
        reasons = {row["reason"]: row["rows"] for row in grouped}
        decided, remaining = sum(reasons.values()), reasons.pop(None, 0)
        if decided >= FEWEST and decided - remaining >= DROPPED_SHARE * decided:
            reason, most = next(iter(reasons.items()))
            text = (
                f"run '{run}': {decided - remaining} of its last {decided} rows will not be trained on, "
                f"{most} of them for {reason}"
            )
            # Expired rows have no reason in `drop`.
            shown = {"state": reason} if reason == "expired" else {"reason": reason}
            findings.append(warn("learn drops", text, f"trinity-db status {run}", run, shown))
    return findings or [ok("learn drops", "most of the newest rows are kept")]


def cleaned(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for clean steps that drop many rows, with the main reason; expired rows do not count."""
    findings = []
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
                "to make the policy do this less, remove the step from processors.clean with --change, so "
                "that a reward penalizes such responses"
            )
            findings.append(warn("learn clean", text, remedy, run, {"reason": reason}))
    return findings or [ok("learn clean", "clean steps keep most of the newest rows")]


def attempts(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for attempts that end with an error."""
    findings = []
    for row in connection.execute(query("learning_attempts"), _newest(run_id)):
        if row["attempts"] >= FEWEST and row["failed"] >= FAILED_SHARE * row["attempts"]:
            error = " ".join(row["error"].split())[:ERROR]
            text = (
                f"run '{row['run']}': {row['failed']} of its last {row['attempts']} attempts failed: {error}"
            )
            remedy = "fix the workflow or the environment; its log has the full error"
            findings.append(warn("learn attempts", text, remedy, row["run"], {"group": row["group_id"]}))
    return findings or [ok("learn attempts", "most of the newest attempts succeed")]


def entropy(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for policies whose attempts are nearly the same, although they do not solve the tasks."""
    findings = []
    groups = connection.execute(query("learning_groups"), _newest(run_id)).fetchall()
    solved = {row["run"] for row in groups if _is_solved(row)}
    for row in _metric(connection, run_id, ENTROPY, STEPS):
        if row["last"] < COLLAPSED_SHARE * row["first"] and row["run"] not in solved:
            text = (
                f"run '{row['run']}': entropy fell from {row['first']:.2g} to {row['last']:.2g} nats per "
                f"token by step {row['step']}, so that attempts at a task are nearly the same"
            )
            remedy = "lower trainer.learning_rate, or raise algorithm.entropy_coefficient, with --change"
            findings.append(warn("learn entropy", text, remedy, row["run"], {"metric": ENTROPY}))
    return findings or [ok("learn entropy", "no policy has lost most of its entropy")]


def log_probabilities(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for engines whose log-probabilities differ from the trainer's, for the same weights."""
    findings = []
    for row in _metric(connection, run_id, OUTSIDE, STEPS):
        if row["last"] > OUTSIDE_SHARE:
            text = (
                f"run '{row['run']}': for the same weights, engine and trainer differ by more than a fifth "
                f"on {row['last']:.1%} of the tokens, at the last steps to {row['step']}"
            )
            remedy = "use the same dtype for both, or correct for it: algorithm.correction"
            findings.append(warn("learn engine", text, remedy, row["run"], {"metric": OUTSIDE}))
    return findings or [ok("learn engine", "engines and trainers agree on log-probabilities")]


def hidden_updates(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for 16-bit versions that show less than half of the update of the last ten versions."""
    findings = []
    for row in _metric(connection, run_id, VISIBLE, 1):
        if row["last"] < VISIBLE_SHARE:
            text = (
                f"run '{row['run']}': its versions show {row['last']:.1%} of the update of the last ten "
                f"versions, as of step {row['step']}: explorers sample an older policy"
            )
            remedy = (
                "set trainer.publish_dtype: float32 with --change, unless the engine rounds to nearest; "
                "or raise trainer.learning_rate, if updates or weight decay are too small for 16 bits: "
                "docs/guides/precision.md"
            )
            findings.append(warn("learn visible", text, remedy, row["run"], {"metric": VISIBLE}))
    return findings or [ok("learn visible", "versions show the updates of their trainers")]


def fast_change(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for policies that move too far from the one that sampled the rows of a step."""
    findings = []
    clipped = {row["run"]: row["last"] for row in _metric(connection, run_id, CLIP_RATIO, RECENT)}
    staleness = {row["run"]: row["last"] for row in _metric(connection, run_id, STALENESS, RECENT)}
    for row in _metric(connection, run_id, APPROX_KL, RECENT):
        run, kl, share = row["run"], row["last"], clipped.get(row["run"], 0.0)
        if kl <= KL and (share <= CLIPPED_SHARE or kl <= CLIPPED_KL):
            continue
        text = (
            f"run '{run}': in the last {RECENT} steps to {row['step']} the policy differs from the one that "
            f"sampled the rows by {kl:.2g} nats per token, and {share:.0%} of the tokens are clipped"
        )
        remedy = "lower trainer.learning_rate with --change"
        if staleness.get(run, 0.0) > STALE:
            remedy += f"; or lower max_staleness: rows are {staleness[run]:.2g} versions old"
        findings.append(
            warn("learn rate", text, remedy, run, {"metric": APPROX_KL if kl > KL else CLIP_RATIO})
        )
    return findings or [ok("learn rate", "policies stay near those that sampled their rows")]


def falling_rewards(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for rewards that have lost half of what they gained, or are below their start.

    Runs that choose tasks by difficulty are left out: their rewards follow the choice. All of the last steps
    must be below the best: the standard error of rewards that are nearly all equal says nothing about a rare
    step.
    """
    findings = []
    values = {"run_id": run_id, "steps": FALL_STEPS, "depth": FALL_DEPTH}
    for row in connection.execute(query("learning_falls"), values):
        fell = row["best"] - row["last"]
        limit = max(FALL_ERRORS * row["error"], (row["best"] - row["first"]) / 2)
        if fell <= limit or row["highest"] >= row["best"]:
            continue
        text = (
            f"run '{row['run']}': the mean reward of {FALL_STEPS} steps fell from {row['best']:.3g} at step "
            f"{row['best_step']} to {row['last']:.3g} at step {row['step']}"
        )
        remedy = (
            "lower trainer.learning_rate, in a new run from a version before the fall (model: {path: "
            "FOLDER}); look at responses of the last steps, in case the reward function fails on them, and "
            "at their tasks, in case a file orders them by difficulty"
        )
        findings.append(warn("learn fall", text, remedy, row["run"], {"metric": REWARD}))
    return findings or [ok("learn fall", "no reward has fallen from its best")]


def cut_responses(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for responses that run to the limit since the run trains."""
    findings = []
    divergence = {row["run"]: row["last"] for row in _metric(connection, run_id, APPROX_KL, RECENT)}
    for row in _metric(connection, run_id, CUT, RECENT):
        run, first, last = row["run"], row["first"], row["last"]
        if last < CUT_SHARE or 1 - last >= (1 - first) / 2:
            continue
        text = (
            f"run '{run}': {last:.0%} of the responses are cut at the maximum length, in the last {RECENT} "
            f"steps to {row['step']}; in its first steps {first:.0%}"
        )
        remedy = "lower trainer.learning_rate with --change"
        if divergence.get(run, 0.0) <= KL:
            remedy = (
                "if the responses make sense, raise explorer.max_new_tokens, or penalize length with "
                "overlong_penalty under processors.score; else " + remedy
            )
        findings.append(warn("learn length", text, remedy, run, {"metric": CUT}))
    return findings or [ok("learn length", "as many responses end before the limit as in the first steps")]


def waiting(connection: Connection, run_id: int | None = None) -> list[Finding]:
    """Check for runs in which one side waits for the other much of the time."""
    findings = []
    for row in connection.execute(query("learning_runs"), {"run_id": run_id}).fetchall():
        shares = status.measured(connection, row["id"])["waiting"]
        text, remedy = status.balance(shares)
        if text and remedy:
            trainer_waits = shares["trainer"] >= status.MUCH_WAITING
            shown = {"metric": "time/wait_for_batch" if trainer_waits else "explore/wait_for_training"}
            findings.append(
                warn("learn pace", f"run '{row['run']}' waits: {text}", remedy, row["run"], shown)
            )
    return findings or [ok("learn pace", "explorers and trainers keep pace with each other")]


def _is_solved(row: Mapping[str, Any]) -> bool:
    """Whether every attempt solved its task in nearly all of a run's newest groups."""
    return bool(row["groups"] >= FEWEST and row["solved"] >= EQUAL_SHARE * row["groups"])


def _metric(connection: Connection, run_id: int | None, name: str, steps: int) -> list[DictRow]:
    """Means of a metric over the first and the last steps of each run with twice as many measurements."""
    values = {"run_id": run_id, "name": name, "steps": steps}
    return connection.execute(query("learning_metric"), values).fetchall()


def _newest(run_id: int | None) -> dict[str, int | None]:
    """Limits of the rows to read."""
    return {"run_id": run_id, "groups": GROUPS, "rows": ROWS, "attempts": ATTEMPTS, "depth": DEPTH}


CHECKS = (
    *(equal_rewards, missing_rewards, drops, cleaned, attempts),
    *(entropy, fast_change, falling_rewards, cut_responses),
    *(log_probabilities, hidden_updates, waiting),
)
