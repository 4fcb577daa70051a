"""Models of the Hub by name: runs, their restarts on other machines, downloads and evaluations."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import MODEL, Ended, Store, new_store, reversals, reversing
from tests.support.hub import COMMIT, NAME, Hub, model_files, serving
from trinity_db.config.shared import ScratchConfig
from trinity_db.models import build_scratch

pytestmark = pytest.mark.slow

PINNED = f"main@{COMMIT}"
NAMED = {"path": NAME, "prompt_template": MODEL["prompt_template"]}
CONFIG = reversing(1, batch_size=2) | {
    "model": NAMED,
    "max_staleness": 0,
    "processors": {"score": ["position_match", {"name": "teacher", "path": NAME}]},
    "algorithm": {"name": "grpo", "kl": "k3"},
}
STORED = "SELECT config FROM run WHERE name = %(run)s"
FIRST = """
SELECT v.checkpoint FROM policy_version v JOIN run r ON r.id = v.run_id
WHERE r.name = %(run)s AND v.version = 0
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    build_scratch(ScratchConfig.model_validate(MODEL["scratch"]), 0, folder)
    return model_files(folder)


@pytest.fixture(scope="module")
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    with serving(Hub(files, "models")) as hub:
        yield hub


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("named")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


def on(store: Store, machine: str, hub: Hub, *arguments: str | Path, **environment: str) -> Ended:
    """Run a command on a machine with separate caches."""
    folder = store.folder / machine
    caches = {"HF_HOME": str(folder / "hf"), "XDG_CACHE_HOME": str(folder / "cache")}
    return store.run(*arguments, **caches, HF_ENDPOINT=hub.url, HF_HUB_DISABLE_XET="1", **environment)


def revisions(config: dict[str, Any]) -> list[str]:
    return [config["model"]["revision"], config["processors"]["score"][1]["revision"]]


@pytest.fixture(scope="module")
def trained(store: Store, hub: Hub) -> Ended:
    """A run whose policy, reference and teacher are of the Hub."""
    ended = on(store, "one", hub, "run", store.config("named", **CONFIG))
    assert ended.code == 0, ended.stderr
    return ended


@pytest.mark.usefixtures("trained")
def test_a_run_downloads_its_models_once_and_records_their_commit(store: Store, hub: Hub) -> None:
    assert revisions(store.value(STORED, run="named")) == [PINNED, PINNED]
    assert sorted(hub.fetched) == sorted(
        {*hub.fetched} - {"README.md", "pytorch_model.bin", "onnx/model.onnx"}
    )
    assert "model.safetensors" in hub.fetched
    first = Path(store.value(FIRST, run="named"))
    assert first.parent == store.home / "checkpoints" / "named"
    assert not any(path.is_symlink() for path in first.iterdir()), "a copy, which other machines may see"
    assert store.value("SELECT count(*) > 0 FROM score WHERE name = 'teacher'")


def test_a_run_says_how_much_disk_a_model_of_the_hub_needs(trained: Ended) -> None:
    assert "needs up to" in trained.stderr


@pytest.mark.usefixtures("trained")
def test_another_machine_and_a_later_start_load_the_recorded_commit(
    store: Store, hub: Hub, files: dict[str, bytes]
) -> None:
    newer = hub.commit({**files, "config.json": files["config.json"] + b"\n"})
    hub.fetched.clear()
    config = store.config("named", **CONFIG)
    ended = on(store, "two", hub, "run", config, "--change", "--set", "trainer.steps=2")
    assert ended.code == 0, ended.stderr
    assert revisions(store.value(STORED, run="named")) == [PINNED, PINNED]
    assert (store.folder / "two/hf/hub/models--owner--tiny/snapshots" / COMMIT).is_dir()
    assert not (store.folder / "two/hf/hub/models--owner--tiny/snapshots" / newer).exists()
    refused = on(store, "two", hub, "run", config, "--set", f"model.revision={newer}")
    assert refused.code == 1
    assert "model.revision may not change" in refused.stderr.splitlines()[-1]


def test_a_download_serves_a_machine_without_network(store: Store, hub: Hub) -> None:
    config = store.config("offline", **CONFIG)
    missing = on(store, "three", hub, "config", "check", config, HF_HUB_OFFLINE="1")
    assert missing.code == 1
    (line,) = missing.error_lines
    cached = store.folder / "three/hf/hub/models--owner--tiny"
    assert f"copy the folder that it names to {cached} here" in line
    done = on(store, "three", hub, "download", "--model", NAME, "--revision", COMMIT, "--json")
    assert json.loads(done.stdout) == {"model": NAME, "revision": COMMIT, "folder": str(cached)}
    by_name = on(store, "three", hub, "download", "--model", NAME)
    assert by_name.stdout == f"{NAME} at main@{hub.main} is in {cached}\n"
    found = on(store, "three", hub, "config", "check", config, HF_HUB_OFFLINE="1")
    assert found.code == 0, found.stderr
    refused = on(store, "three", hub, "download", "--model", NAME, "--split", "train")
    assert refused.code == 2
    assert "are for data sets" in refused.stderr


def test_a_model_of_the_hub_is_evaluated_by_name_and_keeps_its_commit(store: Store, hub: Hub) -> None:
    content = CONFIG | {"processors": {"score": ["position_match"]}, "algorithm": "grpo"}
    config = store.config("judged", **content)
    command = ("evaluate", NAME, "--taskset", "reverse", "--samples", "1", "--config", config, "--json")
    ended = on(store, "three", hub, *command)
    assert ended.code == 0, ended.stderr
    (evaluation,) = json.loads(ended.stdout)["evaluations"]
    assert evaluation["tasks"] == len(reversals(2))
    assert store.value(STORED, run="evaluate-tiny")["model"]["revision"] == f"main@{hub.main}"


@pytest.mark.usefixtures("trained")
def test_a_name_that_only_the_store_gives_is_not_downloaded(store: Store, hub: Hub) -> None:
    asked = hub.requests
    command = ("evaluate", "named", "--taskset", "reverse", "--version", "0", "--samples", "1")
    refused = on(store, "four", hub, *command)
    assert refused.code == 1
    assert "names processors.score.path 'owner/tiny'" in refused.stderr
    assert "pass the run's file with --config FILE" in refused.stderr
    assert hub.requests == asked
    allowed = on(store, "four", hub, *command, "--config", store.config("named", **CONFIG))
    assert allowed.code == 0, allowed.stderr
