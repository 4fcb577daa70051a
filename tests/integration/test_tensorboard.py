"""Event files as TensorBoard itself reads them."""

import json
import sys
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.command_line import CommandLine
from tests.support.rows import Scene
from trinity_db.errors import ConfigError, MissingExtra, TrinityError
from trinity_db.insight.sinks.config import MetricsConfig, MlflowConfig, WandbConfig
from trinity_db.insight.sinks.follow import Follower, sinks_of
from trinity_db.insight.sinks.tensorboard import STATE_FILE, TensorBoard
from trinity_db.schema.states import WorkerRole


def catch_up(scene: Scene, folder: Path) -> int:
    with closing(Follower(scene.database, scene.run, TensorBoard(folder))) as follower:
        return follower.catch_up()


def shown(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By tag the steps and values, in the order in which TensorBoard reads them."""
    events = EventAccumulator(str(folder / "run"), size_guidance={"scalars": 0}).Reload()
    tags: list[str] = events.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def test_tensorboard_has_every_number_under_its_role(scene: Scene, tmp_path: Path) -> None:
    scene.record(1, {"loss": 0.5, "rewards/margins": 0.25, "eval/loss": 2.0, "clip_ratio": 0.0})
    scene.record(0, {"explore/seconds": 4.0}, WorkerRole.EXPLORE)
    assert catch_up(scene, tmp_path) == 5
    scene.record(2, {"loss": 0.125})
    assert catch_up(scene, tmp_path) == 1
    assert shown(tmp_path) == {
        "train/loss": [(1, 0.5), (2, 0.125)],
        "train/rewards/margins": [(1, 0.25)],
        "train/clip_ratio/region_mean": [(1, 0.0)],
        "eval/loss": [(1, 2.0)],
        "explore/seconds": [(0, 4.0)],
    }


def test_the_time_is_that_of_the_measurement(scene: Scene, tmp_path: Path) -> None:
    scene.record(1, {"loss": 0.5})
    catch_up(scene, tmp_path)
    (event,) = EventAccumulator(str(tmp_path / "run")).Reload().Scalars("train/loss")
    measured = scene.value("SELECT created_at FROM trinity.metric")
    assert event.wall_time == pytest.approx(measured.timestamp(), abs=1e-5)


def test_a_step_that_was_measured_again_has_both_the_later_one_last(scene: Scene, tmp_path: Path) -> None:
    for step, loss in [(1, 0.5), (2, 0.25), (2, 0.75), (3, 0.125)]:
        scene.record(step, {"loss": loss})
    catch_up(scene, tmp_path)
    assert shown(tmp_path)["train/loss"] == [(1, 0.5), (2, 0.25), (2, 0.75), (3, 0.125)]


def test_what_a_killed_process_wrote_is_written_again_with_the_same_bytes(
    scene: Scene, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    scene.record(1, {"loss": 0.5})
    catch_up(scene, tmp_path)
    before = (folder / STATE_FILE).read_text()
    scene.record(2, {"loss": 0.25})
    catch_up(scene, tmp_path)
    (events,) = folder.glob("*tfevents*")
    whole = events.read_bytes()
    (folder / STATE_FILE).write_text(before)  # killed between the events and the position
    scene.record(3, {"loss": 0.125})
    assert catch_up(scene, tmp_path) == 2
    assert events.read_bytes().startswith(whole)
    assert shown(tmp_path)["train/loss"] == [(1, 0.5), (2, 0.25), (3, 0.125)]


@pytest.mark.parametrize("lost", ["*tfevents*", STATE_FILE])
def test_a_folder_of_which_a_file_is_lost_is_filled_anew(scene: Scene, tmp_path: Path, lost: str) -> None:
    scene.record(1, {"loss": 0.5})
    catch_up(scene, tmp_path)
    for path in (tmp_path / "run").glob(lost):
        path.unlink()
    assert catch_up(scene, tmp_path) == 1
    assert shown(tmp_path)["train/loss"] == [(1, 0.5)]


def test_one_process_at_a_time_writes(scene: Scene, tmp_path: Path) -> None:
    scene.record(1, {"loss": 0.5})
    with closing(Follower(scene.database, scene.run, TensorBoard(tmp_path))) as first:
        assert first.catch_up() == 1
        with pytest.raises(TrinityError, match="another process is writing its metrics there"):
            catch_up(scene, tmp_path)
    assert catch_up(scene, tmp_path) == 0


def test_another_stores_run_of_the_same_name_is_left_alone(scene: Scene, tmp_path: Path) -> None:
    scene.record(1, {"loss": 0.5})
    catch_up(scene, tmp_path)
    files = sorted(path.name for path in (tmp_path / "run").iterdir())
    other = replace(scene, run=replace(scene.run, created_at=scene.run.created_at - timedelta(days=1)))
    with pytest.raises(ConfigError, match=f"{tmp_path / 'run'} has the metrics of another store's run"):
        catch_up(other, tmp_path)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == files
    assert shown(tmp_path)["train/loss"] == [(1, 0.5)]


def test_the_command_fills_a_folder_and_says_how_many_numbers_there_were(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    def run(*arguments: str) -> tuple[int | str | None, str]:
        done = command_line("metrics", "run", *arguments)
        return done.code, done.stdout

    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    scene.record(1, {"loss": 0.5, "kl": 0.0})
    assert run("--tensorboard", str(tmp_path)) == (0, f"TensorBoard ({tmp_path}): 2 numbers of run 'run'\n")
    _, counts = run("--tensorboard", str(tmp_path), "--json")
    assert json.loads(counts) == {f"TensorBoard ({tmp_path})": 0}
    assert run()[0] == 2
    scene.record(2, {"loss": 0.25})
    scene.value("UPDATE trinity.run SET state = 'finished', finished_at = now() RETURNING id")
    monkeypatch.setattr("trinity_db.insight.sinks.follow.LOOK_SECONDS", 0.0)
    assert run("--tensorboard", str(tmp_path), "--follow") == (0, "")
    assert shown(tmp_path)["train/loss"] == [(1, 0.5), (2, 0.25)]
    assert run("--tensorboard", str(tmp_path), "--follow", "--json")[0] == 2
    with closing(Follower(scene.database, scene.run, TensorBoard(tmp_path))) as other:
        other.catch_up()
        code, printed = run("--tensorboard", str(tmp_path), "--follow")
    assert str(code).endswith("another process is writing its metrics there"), "to follow in vain is an error"
    assert printed == ""


@pytest.mark.parametrize(
    ("config", "package", "extra"),
    [
        (MetricsConfig(tensorboard=Path("runs")), "tensorboard", "tensorboard"),
        (MetricsConfig(wandb=WandbConfig()), "wandb", "wandb"),
        (MetricsConfig(mlflow=MlflowConfig()), "mlflow", "mlflow"),
    ],
)
def test_a_missing_package_is_noticed_at_once_and_its_extra_named(
    config: MetricsConfig, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"needs the package {package}; .*'trinity-db\[{extra}\]'"):
        sinks_of(config)
