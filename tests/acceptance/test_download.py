"""A data set of the Hub, fetched by the one command that may and imported from where it lies."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.command import COMMAND, Ended
from tests.support.hub import CARD, COMMIT, Hub, parquet, serving
from trinity_db.data.files.readers import open_rows

TRAIN, TEST = "main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet"
ROWS = [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    pytest.importorskip("datasets")
    train = parquet(question=[row["question"] for row in ROWS], answer=[row["answer"] for row in ROWS])
    other = parquet(question=["3+3?"], answer=["6"])
    files = {"README.md": CARD, TRAIN: train, TEST: other, "other/train-00000-of-00001.parquet": other}
    with serving(Hub(files)) as hub:
        yield hub


def download(folder: Path, url: str, *arguments: str) -> Ended:
    environment = os.environ | {
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_DISABLE_XET": "1",
    }
    done = subprocess.run(
        [COMMAND, "download", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def test_a_download_that_was_cut_short_goes_on_and_names_its_revision(hub: Hub, tmp_path: Path) -> None:
    hub.closed.add(TEST)
    cut = download(tmp_path, hub.url, "owner/tiny", "--subset", "main")
    assert cut.code == 1
    assert cut.stderr.splitlines()[-1].startswith("error: owner/tiny cannot be downloaded: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]
    hub.closed.clear()
    whole = download(tmp_path, hub.url, "owner/tiny", "--subset", "main")
    assert whole.code == 0, whole.stderr
    assert whole.stdout.startswith(f"owner/tiny at {COMMIT} written to tiny\n")
    assert [name for name in hub.fetched if name.endswith(".parquet")] == [TRAIN, TEST], "each once"
    assert json.loads((tmp_path / "tiny" / "source.json").read_text()) == {
        "dataset": "owner/tiny",
        "revision": COMMIT,
        "subset": "main",
        "split": None,
    }
    assert [row for _, row in open_rows(tmp_path / "tiny", "train")] == ROWS
    again = download(tmp_path, hub.url, "owner/tiny", "--subset", "main", "--json")
    assert json.loads(again.stdout)["known"] is True
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "tiny"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("owner/tiny", "--revision", "nope"), "error: owner/tiny cannot be downloaded: "),
        (("owner/nothing",), "error: owner/nothing cannot be downloaded: "),
        (("owner/tiny", "--subset", "mian"), "main"),
        (("owner/tiny", "--subset", "main", "--split", "dev"), "train"),
    ],
)
def test_what_the_hub_does_not_have_is_said_in_one_line(
    hub: Hub, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = download(tmp_path, hub.url, *arguments)
    assert done.code == 1
    assert says in done.stderr.splitlines()[-1], done.stderr
    assert "Traceback" not in done.stderr


def test_a_hub_that_does_not_answer_is_said_in_one_line(tmp_path: Path) -> None:
    done = download(tmp_path, "http://127.0.0.1:9", "owner/tiny")
    assert (done.code, "Traceback" in done.stderr) == (1, False)
    assert done.stderr.splitlines()[-1].startswith("error: owner/tiny cannot be downloaded: ")
