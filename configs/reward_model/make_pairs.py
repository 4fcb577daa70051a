"""Write tasks and preferences: of two texts, larger digits are preferred.

python configs/reward_model/make_pairs.py FOLDER
"""

import json
import random
import sys
from pathlib import Path

from judge import mean_digit

ALPHABET, LONGEST, PAIRS = "0123456789=", 6, 1600


def text() -> str:
    """Return a random text of any length that the policy may sample; = counts as 0."""
    return "".join(random.choices(ALPHABET, k=random.randint(1, LONGEST)))


def pair() -> dict[str, str]:
    """Return a pair of texts in which the better one is preferred."""
    while True:
        rejected, chosen = sorted((text(), text()), key=mean_digit)
        if mean_digit(chosen) > mean_digit(rejected):
            return {"prompt": random.choice(ALPHABET[:-1]), "chosen": chosen, "rejected": rejected}


random.seed(0)
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "tasks.jsonl").write_text(
    "".join(json.dumps({"prompt": letter}) + "\n" for letter in ALPHABET[:-1])
)
(folder / "pairs.jsonl").write_text("".join(json.dumps(pair()) + "\n" for _ in range(PAIRS)))
