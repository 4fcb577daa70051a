"""Models by name: the files that are downloaded from a repository, and the folder of a name."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from tests.support.hub import COMMIT, NAME, Hub, model_files, serving
from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import build_scratch, check_source, folder_digest, hub, load_model
from trinity_db.processors.lists import lists
from trinity_db.run import model_revisions
from trinity_db.run.configuration import RunConfig

PATH, PINNED = Path(NAME), f"main@{COMMIT}"
NEEDED = ["config.json", "generation_config.json", "model.safetensors"]
NEEDED += ["tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    build_scratch(ScratchConfig(alphabet="01", hidden_size=16, layers=1, heads=2, context=16), 0, folder)
    return model_files(folder)


@pytest.fixture
def server(files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the model, and a machine that has downloaded nothing."""
    with serving(Hub(files, "models")) as server:
        address(server.url, monkeypatch)
        new_machine(tmp_path / "machine", monkeypatch)
        yield server


def new_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder / "hf"))


def address(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the library another HF_ENDPOINT, which it reads only when it is imported."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def take_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    address("http://127.0.0.1:9", monkeypatch)


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def config_of(**content: Any) -> RunConfig:
    common = {"name": "run", "taskset": "tasks", "algorithm": "grpo", "trainer": {"steps": 1}}
    return RunConfig.model_validate(common | {"model": {"path": NAME}} | content)


def test_a_model_is_downloaded_with_the_files_that_it_needs(server: Hub) -> None:
    assert hub.pin(NAME, None) == PINNED
    assert sorted(server.fetched) == [name for name in NEEDED if name != "model.safetensors"]
    folder = hub.folder(PATH, PINNED)
    assert names_in(folder) == sorted(server.fetched) == NEEDED
    load_model(folder)
    asked = server.requests
    assert hub.folder(PATH, PINNED) == folder
    assert server.requests == asked, "what is on this machine is not asked for"


def test_the_digest_of_a_model_stays_the_same_when_others_extend_the_cache(server: Hub) -> None:
    folder = hub.folder(PATH, PINNED)
    digest = folder_digest.digest(folder)
    huggingface_hub.snapshot_download(NAME, revision=COMMIT)  # all files, as another program does
    assert folder_digest.digest(hub.folder(PATH, PINNED)) == digest


def test_pickles_are_downloaded_only_without_safetensors(server: Hub, files: dict[str, bytes]) -> None:
    others = {name: content for name, content in files.items() if not name.endswith(".safetensors")}
    commit = server.commit(others)
    assert "pytorch_model.bin" in names_in(hub.folder(PATH, f"main@{commit}"))
    del others["pytorch_model.bin"]
    with pytest.raises(ConfigError, match="has no weights"):
        hub.folder(PATH, f"main@{server.commit(others)}")


def test_weights_in_several_files_are_whole_when_all_are_there(
    server: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = json.dumps({"weight_map": {"a": parts[0], "b": parts[1]}}).encode()
    single = {name: content for name, content in files.items() if name != "model.safetensors"}
    commit = server.commit({**single, **dict.fromkeys(parts, b"w"), "model.safetensors.index.json": index})
    folder = hub.folder(PATH, f"main@{commit}")
    assert set(parts) < set(names_in(folder))
    (folder / parts[1]).resolve().unlink()
    take_offline(monkeypatch)
    with pytest.raises(TrinityError, match="no whole copy"):
        hub.folder(PATH, f"main@{commit}")


def test_a_folder_of_that_name_comes_first(server: Hub, files: dict[str, bytes]) -> None:
    for name in NEEDED:
        path = PATH / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[name])
    assert hub.folder(PATH) == PATH
    check_source(ModelConfig(path=PATH))
    assert model_revisions.pinned(config_of()).model.revision is None
    assert server.requests == 0
    with pytest.raises(ConfigError, match="a folder has none"):
        hub.folder(PATH, "main")


def test_only_pin_looks_a_branch_up(server: Hub) -> None:
    for revision in (None, "main"):
        with pytest.raises(ConfigError, match=f"{NAME}: no such model folder"):
            hub.folder(PATH, revision)
    assert server.requests == 0


@pytest.mark.parametrize(
    ("name", "revision", "says"),
    [
        ("owner/nothing", None, "owner/nothing: there is no such folder, and no such model on the Hub"),
        (NAME, "v9", f"{NAME}: the Hub has no revision 'v9'"),
    ],
)
def test_what_the_hub_does_not_have_is_reported_in_one_line(
    server: Hub, name: str, revision: str | None, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        hub.pin(name, revision)
    assert "\n" not in str(raised.value)


def test_a_closed_model_is_reported_with_the_variable_for_a_token(server: Hub) -> None:
    server.closed.add("model.safetensors")
    with pytest.raises(ConfigError, match="set HF_TOKEN"):
        hub.folder(PATH, PINNED)


def test_without_network_the_cache_is_used_and_a_missing_model_names_what_to_copy(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hub.folder(PATH, hub.pin(NAME, None))
    cached = hub.cached(NAME)
    take_offline(monkeypatch)
    assert hub.folder(PATH, hub.pin(NAME, None)) == folder
    new_machine(tmp_path / "other", monkeypatch)
    for call in (lambda: hub.pin(NAME, None), lambda: hub.folder(PATH, PINNED)):
        with pytest.raises(TrinityError) as raised:
            call()
        error = str(raised.value)
        assert "\n" not in error
        assert "HF_HUB_OFFLINE is set" in error
        assert f"trinity-db download --model {NAME}" in error
        assert f"copy the folder that it names to {hub.cached(NAME)} here" in error
    hub.cached(NAME).parent.mkdir(parents=True)
    cached.rename(hub.cached(NAME))  # as the message tells the user
    assert names_in(hub.folder(PATH, hub.pin(NAME, None))) == NEEDED


def test_a_run_keeps_the_commits_that_it_has_recorded(server: Hub, files: dict[str, bytes]) -> None:
    teacher = {"name": "teacher", "path": NAME}
    config = config_of(processors={"score": [teacher, "exact_match"]})
    first = model_revisions.pinned(config)
    assert first.model.revision == PINNED
    assert first.processors.score[0].options["revision"] == PINNED
    lists.check(first.processors, first.model)
    newer = server.commit({**files, "config.json": files["config.json"] + b"\n"})
    stored = RunConfig.completed(first.stored())
    assert stored == first.stored()
    again = model_revisions.pinned(config, stored)
    assert again.stored() == stored == model_revisions.recorded(config, stored).stored()
    named = config_of(
        model={"path": NAME, "revision": "main"}, processors={"score": [teacher, "exact_match"]}
    )
    assert model_revisions.pinned(named, stored).stored() == stored
    other = config_of(model={"path": NAME, "revision": newer})
    assert model_revisions.pinned(other, stored).model.revision == newer
    assert model_revisions.pinned(config).model.revision == f"main@{newer}", "a new run has the newest"


@pytest.mark.parametrize("named", [COMMIT, f"main@{COMMIT}"])
def test_a_commit_that_a_file_names_is_taken_whatever_is_stored(server: Hub, named: str) -> None:
    config = config_of(model={"path": NAME, "revision": named})
    stored = config_of(model={"path": NAME, "revision": f"{named}@{'f' * 40}"}).stored()
    assert model_revisions.pinned(config, stored).model.revision == named
    assert model_revisions.recorded(config, stored).model.revision == named


def test_a_run_that_began_with_a_folder_takes_no_repository_of_that_name(server: Hub) -> None:
    config = config_of()
    assert model_revisions.pinned(config, config.stored()).model.revision is None
    assert server.requests == 0


def test_a_revision_belongs_to_a_path() -> None:
    with pytest.raises(ValueError, match="revision is of a model of the Hub"):
        ModelConfig.model_validate({"scratch": {}, "revision": "main"})


def test_a_hub_is_known_and_its_library_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_DB_HUB", "modelscope")
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(TrinityError, match="needs the package modelscope: pip install modelscope"):
        hub.pin(NAME, None)
    monkeypatch.setenv("TRINITY_DB_HUB", "elsewhere")
    with pytest.raises(ConfigError, match="'elsewhere'; known: huggingface, modelscope"):
        hub.pin(NAME, None)
