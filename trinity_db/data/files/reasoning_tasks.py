"""Writes the tasks of a data set of reasoning-gym as JSON lines.

`generated.py` runs it with the interpreter that has the package: python reasoning_tasks.py NAME SIZE SEED
FILE. So it does not import trinity_db.
"""

import difflib
import json
import sys


def main() -> None:
    """Write the rows, or a one-line error to standard error."""
    name, size, seed, path = sys.argv[1:]
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ModuleNotFoundError as error:
        sys.exit(f"{error}: pip install reasoning-gym, or name an interpreter that has it with --python")
    if name not in DATASETS:
        nearest = difflib.get_close_matches(name, DATASETS, n=1)
        sys.exit(f"no such data set; {f'did you mean {nearest[0]}' if nearest else 'its gallery lists them'}")
    with open(path, "w", encoding="utf-8") as file:
        for index, entry in enumerate(create_dataset(name, size=int(size), seed=int(seed))):
            row = {"prompt": entry["question"], "dataset": name, "seed": int(seed), "index": index}
            if isinstance(entry["answer"], str):
                row["answer"] = entry["answer"]
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
