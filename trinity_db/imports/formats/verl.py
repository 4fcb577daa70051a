"""verl: the Parquet files that it trains on, and the attempts that it writes down.

Tasks have data_source, prompt (messages), ability, reward_model {style, ground_truth} and extra_info
(https://verl.readthedocs.io/en/latest/preparation/prepare_data.html). Attempts are JSON lines with input,
output, score and step, perhaps gts, as `trainer.rollout_data_dir` asks for; or tasks with a list of
`responses`, as verl's generation writes them.
"""

from collections.abc import Iterator
from typing import Any

from trinity_db.imports.records import Kind, Unfit

Row = dict[str, Any]

KINDS: tuple[Kind, ...] = ("tasks", "trajectories")
WRITTEN_DOWN = {"input", "output", "score", "step"}


def recognises(row: Row) -> bool:
    """Whether it is a task of verl, or an attempt that it wrote down."""
    rule = row.get("reward_model")
    return row.keys() >= WRITTEN_DOWN or (
        "data_source" in row and isinstance(rule, dict) and "ground_truth" in rule
    )


def read(row: Row, kind: Kind) -> Iterator[Row]:
    """A task, or attempts at one, with the ground truth as its answer.

    Raises:
        Unfit: it has none of what the kind needs.
    """
    if kind == "tasks":
        yield _task(row)
    elif row.keys() >= WRITTEN_DOWN:
        rest = dict(row)
        yield {
            "prompt": rest.pop("input"),
            "response": rest.pop("output"),
            "reward": rest.pop("score"),
            "answer": rest.pop("gts", None),
            "extra": rest,
        }
    elif isinstance(row.get("responses"), list):
        task = _task(row)
        for number, response in enumerate(task.pop("responses")):
            said = {"prompt": task["prompt"], "response": response, "answer": task["answer"]}
            rest = {name: value for name, value in task.items() if name not in ("prompt", "answer")}
            yield said | {"extra": rest | {"response_number": number}}
    else:
        raise Unfit("has neither 'input', 'output', 'score' and 'step' nor 'responses', as attempts of verl")


def _task(row: Row) -> Row:
    task = dict(row)
    rule = task.pop("reward_model", None)
    if not isinstance(rule, dict) or rule.get("ground_truth") is None:
        raise Unfit("'reward_model' has no 'ground_truth'")
    if task.get("prompt") is None:
        raise Unfit("'prompt' is missing")
    rest = {name: value for name, value in rule.items() if name != "ground_truth"}
    return task | {"answer": rule["ground_truth"]} | ({"reward_model": rest} if rest else {})
