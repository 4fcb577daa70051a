"""Picture of a run: reward by policy version, staleness by trainer step."""

from pathlib import Path

from trinity_db.errors import MissingExtra
from trinity_db.postgres.connection import Database
from trinity_db.schema.queries import query


def plot_run(database: Database, run_name: str, path: Path) -> None:
    """Write the picture as PNG.

    Raises:
        MissingExtra: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("train", "matplotlib") from error

    with database.transaction() as tx:
        versions = tx.execute(query("reward_by_version"), {"run": run_name}).fetchall()
        steps = tx.execute(query("staleness_by_step"), {"run": run_name}).fetchall()
    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1)
    above.plot([row["version"] for row in versions], [row["reward"] for row in versions], color="tab:blue")
    above.set(title=f"Run {run_name}", xlabel="policy version of the rollouts", ylabel="mean reward")
    below.fill_between(
        [row["step"] for row in steps],
        [row["staleness_min"] for row in steps],
        [row["staleness_max"] for row in steps],
        color="tab:orange",
        alpha=0.3,
        label="min to max",
    )
    below.plot(
        [row["step"] for row in steps],
        [row["staleness_mean"] for row in steps],
        color="tab:orange",
        label="mean",
    )
    below.set(xlabel="trainer step", ylabel="staleness of the batch, in versions", ylim=(0, None))
    below.legend(loc="lower right")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
