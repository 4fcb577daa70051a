"""What the roles of a run ask of a Ray cluster, and what is refused before Ray is loaded."""

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trinity_db.config.base import validate
from trinity_db.errors import ConfigError, MissingExtra, TrinityError
from trinity_db.ray import cluster
from trinity_db.run.configuration import RunConfig
from trinity_db.run.in_cluster import needs_of, passed_on

ONLINE: dict[str, Any] = {
    "name": "run",
    "model": {"path": "model"},
    "algorithm": "grpo",
    "taskset": "tasks",
    "trainer": {"steps": 1},
}
TEACHER = {"score": ["defaults", {"name": "teacher", "path": "t"}]}
STORE = "postgresql://db.example.org/trinity"


def configured(**content: Any) -> RunConfig:
    return validate(RunConfig, ONLINE | content, "run.yaml")


@pytest.mark.parametrize(
    ("content", "role", "needs"),
    [
        ({}, "explore", {"CPU": 1, "GPU": 1}),
        ({}, "process", {}),
        ({}, "train", {"CPU": 1, "GPU": 1}),
        ({"trainer": {"steps": 1, "ranks": 8}}, "train", {"CPU": 8, "GPU": 8}),
        ({"processors": TEACHER}, "process", {"CPU": 1, "GPU": 1}),
        ({"explorer": {"engine": {"name": "vllm", "tensor_parallel": 4}}}, "explore", {"CPU": 1, "GPU": 4}),
        ({"explorer": {"engine": {"name": "endpoint", "urls": ["http://h:1"]}}}, "explore", {"CPU": 1}),
        ({"ray": {"explore": {"gpus": 0.5, "cpus": 0}}}, "explore", {"GPU": 0.5}),
        ({"ray": {"train": {"resources": {"home": 1}}}}, "train", {"CPU": 1, "GPU": 1, "home": 1}),
    ],
)
def test_a_role_asks_for_what_its_engine_and_its_ranks_need(
    content: dict[str, Any], role: str, needs: dict[str, float]
) -> None:
    assert needs_of(configured(**content), role, has_gpus=True) == needs


def test_without_gpus_in_the_cluster_a_role_asks_for_one_only_if_it_was_said() -> None:
    asked = configured(ray={"train": {"gpus": 1}})
    assert needs_of(asked, "explore", has_gpus=False) == {"CPU": 1}
    assert needs_of(asked, "train", has_gpus=False) == {"CPU": 1, "GPU": 1}


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ({"trian": {}}, "unknown key 'ray.trian'; did you mean 'train'?"),
        ({"train": {"gpu": 1}}, "unknown key 'ray.train.gpu'; did you mean 'gpus'?"),
        ({"train": {"gpus": 1.5}}, "ray.train: gpus is 1.5: use an integer, or a share below 1"),
        ({"train": {"gpus": -1}}, "ray.train.gpus: Input should be greater than or equal to 0"),
        ({"train": {"cpus": 0.00001}}, "ray.train: cpus is 1e-05: the minimum is 0.0001"),
        ({"train": {"resources": {"a": 0.00001}}}, "ray.train: a is 1e-05: the minimum is 0.0001"),
        ({"train": {"resources": {" ": 1}}}, "ray.train: resources: a name is empty"),
        ({"train": {"resources": {"GPU": 1}}}, "ray.train: resources: GPU is reserved by Ray"),
        ({"train": {"resources": {"spot": 0}}}, "Input should be greater than 0"),
    ],
)
def test_what_ray_cannot_count_is_refused(section: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        configured(ray=section)
    assert complaint in str(error.value)


def test_what_roles_ask_for_may_change_during_a_run() -> None:
    assert configured(ray={"train": {"gpus": 8}}).stored() == configured().stored()


def test_a_role_elsewhere_gets_the_store_the_home_and_the_keys_that_the_configuration_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"TRINITY_DB_URL": STORE, "PGPASSWORD": "secret", "FLEET_KEY": "key", "JUDGE_KEY": "key"}
    for name, value in (told | {"OTHER_KEY": "key"}).items():
        monkeypatch.setenv(name, value)
    engine = {"name": "endpoint", "urls": ["http://h:1"], "key_env": "FLEET_KEY"}
    judge = {
        "name": "model_judge",
        "rubric": "r.md",
        "model": "m",
        "url": "http://h:2",
        "key_env": "JUDGE_KEY",
    }
    found = passed_on(configured(explorer={"engine": engine}, processors={"score": [judge]}))
    assert told.items() <= found.items()
    assert Path(found["TRINITY_DB_HOME"]).is_absolute()
    assert not {"OTHER_KEY", "PATH"} & found.keys()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: importlib.util.find_spec("pytest"))


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'trinity-db\[ray\]'"):
        cluster.check(cluster.LOCAL)


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("address", ["auto", "ray://10.0.0.1:10001", "10.0.0.1", ":6379", "h:0", "h:99999"])
def test_an_address_has_a_host_and_a_port(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", STORE)
    with pytest.raises(ConfigError, match="use HOST:PORT as printed by `ray start --head`, or local"):
        cluster.check(address)


@pytest.mark.usefixtures("_installed")
def test_the_embedded_server_does_not_serve_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRINITY_DB_URL", raising=False)
    cluster.check(cluster.LOCAL)
    with pytest.raises(ConfigError, match="the embedded server serves only this machine"):
        cluster.check("10.0.0.1:6379")


@pytest.mark.usefixtures("_installed")
def test_an_address_where_nothing_answers_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", STORE)
    with pytest.raises(TrinityError, match=f"--ray 127.0.0.1:{free_port}: no cluster responds"):
        cluster.check(f"127.0.0.1:{free_port}")


def test_a_supervisor_of_one_machine_loads_no_ray() -> None:
    program = "import sys; from trinity_db.cli import supervise; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
