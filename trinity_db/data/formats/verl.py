"""verl: Parquet files with tasks, and recorded attempts.

Tasks have data_source, prompt (messages), ability, reward_model {style, ground_truth} and extra_info
(https://verl.readthedocs.io/en/latest/preparation/prepare_data.html). Attempts are JSON lines with input,
output, score and step, perhaps gts, written with `trainer.rollout_data_dir`; or tasks with a list of
`responses`, written by verl's generation.
"""

from collections.abc import Iterator
from typing import Any

from trinity_db.data.records.records import Kind, Unfit

Row = dict[str, Any]

KINDS: tuple[Kind, ...] = ("tasks", "trajectories")
WRITTEN_DOWN = {"input", "output", "score", "step"}


def recognises(row: Row) -> bool:
    """Whether a row is a task of verl, or a recorded attempt."""
    rule = row.get("reward_model")
    return row.keys() >= WRITTEN_DOWN or (
        "data_source" in row and isinstance(rule, dict) and "ground_truth" in rule
    )


def read(row: Row, kind: Kind) -> Iterator[Row]:
    """Yield a task, or attempts at one, with the ground truth as its answer.

    Raises:
        Unfit: if it lacks what the kind needs.
    """
    if kind == "tasks":
        yield _task(row)
    elif row.keys() >= WRITTEN_DOWN:
        others = dict(row)
        yield {
            "prompt": others.pop("input"),
            "response": others.pop("output"),
            "reward": others.pop("score"),
            "answer": others.pop("gts", None),
            "extra": others,
        }
    elif isinstance(row.get("responses"), list):
        task = _task(row)
        for number, response in enumerate(task.pop("responses")):
            attempt = {"prompt": task["prompt"], "response": response, "answer": task["answer"]}
            others = {name: value for name, value in task.items() if name not in ("prompt", "answer")}
            yield attempt | {"extra": others | {"response_number": number}}
    else:
        raise Unfit("has neither 'input', 'output', 'score' and 'step' nor 'responses', as attempts of verl")


def _task(row: Row) -> Row:
    task = dict(row)
    rule = task.pop("reward_model", None)
    if not isinstance(rule, dict) or rule.get("ground_truth") is None:
        raise Unfit("'reward_model' has no 'ground_truth'")
    if task.get("prompt") is None:
        raise Unfit("'prompt' is missing")
    others = {name: value for name, value in rule.items() if name != "ground_truth"}
    return task | {"answer": rule["ground_truth"]} | ({"reward_model": others} if others else {})
