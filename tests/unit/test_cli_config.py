"""`trinity-db config`: starting files, explanations, origins, mistakes and the schema for editors."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_line import CommandLine
from tests.support.json_schema import accepts
from trinity_db.cli import explained
from trinity_db.config import base, keys
from trinity_db.config.base import rule
from trinity_db.errors import NotFound
from trinity_db.run import json_schema, starting_file
from trinity_db.run.configuration import RunConfig
from trinity_db.trainer.recipes.recipes import RECIPES

CONFIGS = sorted((Path(__file__).parents[2] / "configs").rglob("*.yaml"))
ONLINE = {
    "name": "first",
    "model": {"scratch": {}},
    "taskset": "t",
    "algorithm": "grpo",
    "trainer": {"steps": 3},
}
OFFLINE = {"name": "first", "model": {"scratch": {}}, "data": ["d"], "algorithm": "sft"}


@pytest.fixture
def run(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CommandLine:
    """Runs `trinity-db config` with these arguments, in a folder of its own and without a store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRINITY_DB_URL", raising=False)
    return partial(command_line, "config")


def file(content: dict[str, Any]) -> str:
    """The name of a file with this configuration."""
    Path("run.yaml").write_text(yaml.safe_dump(content))
    return "run.yaml"


def explanation(run: CommandLine, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("explain", key, "--json").stdout)
    return found


# new


@pytest.mark.parametrize("purpose", starting_file.CONTENTS)
def test_a_starting_file_is_a_configuration_that_explains_each_of_its_keys(
    run: CommandLine, purpose: str
) -> None:
    done = run("new", "--for", purpose, "--name", "begun", "--output", "begun.yaml")
    assert (done.code, done.stdout, done.stderr) == (0, "", "")
    assert base.load(RunConfig, Path("begun.yaml")).name == "begun"
    text = Path("begun.yaml").read_text()
    said = " ".join(line.strip().removeprefix("# ") for line in text.splitlines())
    for key in ("name", "model.path", "model.scratch", "algorithm", "trainer.batch_size"):
        assert keys.find(RunConfig, key)[0].text in said


def test_without_a_file_the_starting_file_goes_to_stdout(run: CommandLine) -> None:
    assert yaml.safe_load(run("new", "--for", "dpo").stdout)["algorithm"] == {"name": "dpo", "beta": 0.1}


def test_a_file_that_exists_is_not_touched(run: CommandLine) -> None:
    Path("mine.yaml").write_text("mine")
    done = run("new", "--for", "grpo", "--output", "mine.yaml")
    assert done.code == "error: mine.yaml exists, and is not written over; name another file."
    assert Path("mine.yaml").read_text() == "mine"


def test_a_name_that_no_run_can_have_is_refused(run: CommandLine) -> None:
    done = run("new", "--for", "grpo", "--name", "no/name", "--output", "new.yaml")
    assert str(done.code).startswith("error: name 'no/name': take up to 100 letters")
    assert not Path("new.yaml").exists()


def test_values_that_are_given_stand_in_a_starting_file() -> None:
    given = {"model.path": "models/one", "model.scratch": starting_file.Off({}), "trainer.steps": 7}
    text = starting_file.text("grpo", "begun", given)
    content = yaml.safe_load(text)
    assert (content["model"], content["trainer"]["steps"]) == ({"path": "models/one"}, 7)
    assert starting_file.settings_of("grpo")["trainer.steps"] == 100
    assert set(starting_file.settings_of("dpo")) > {"data", "algorithm", "trainer.epochs"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_file_written_from_a_stored_configuration_is_that_configuration(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    if "algorithm" not in content:
        pytest.skip("no configuration of a run")
    stored = RunConfig.model_validate(content).stored()
    written = yaml.safe_dump(RunConfig.written(stored))
    assert RunConfig.model_validate(yaml.safe_load(written)).stored() == stored
    assert len(written.splitlines()) < 80


# explain


def test_every_key_can_be_explained_and_has_a_text() -> None:
    for key in keys.every(RunConfig):
        for one in explained.explain(key):
            assert one.text or key.endswith(".name"), key


def test_every_key_says_of_changes_what_holds_for_it() -> None:
    for key in keys.every(RunConfig):
        marks = {meaning.mark for meaning in keys.find(RunConfig, key)}
        if marks != {None}:  # a section, each of whose keys says it for itself
            assert rule(RunConfig, key) in marks


def test_a_key_says_what_it_takes_and_whether_it_may_change(run: CommandLine) -> None:
    (one,) = explanation(run, "trainer.learning_rate")
    assert one["text"] == "Peak learning rate."
    assert one["type"].startswith("number > 0")
    assert (one["default"], one["may change"]) == ("1e-05", "with --change, for later steps")


def test_a_key_that_parts_describe_differently_is_explained_for_each(run: CommandLine) -> None:
    k1, others = explanation(run, "algorithm.kl.applies_to")
    assert (k1["of"], k1["default"]) == (["k1"], "reward")
    assert ("k3" in others["of"], others["default"]) == (True, "loss")


def test_an_option_beside_the_recipe_is_explained_as_that_of_its_part(run: CommandLine) -> None:
    assert {one["name"] for one in explanation(run, "algorithm.clip_high")} == {"algorithm.loss.clip_high"}


def test_a_section_names_what_may_stand_there(run: CommandLine) -> None:
    (one,) = explanation(run, "trainer.reference")
    assert list(one["below"]) == ["start", "synchronised", "precomputed"]
    (chosen,) = explanation(run, "trainer.reference.synchronised")
    assert list(chosen["below"]) == ["sync_every", "mix"]


def test_recipes_and_parts_are_explained_by_name(run: CommandLine) -> None:
    recipe, part = explanation(run, "policy_gradient")
    assert (recipe["type"], part["type"]) == ("recipe", "part (policy loss)")
    (dapo,) = explanation(run, "dapo")
    assert dapo["below"]["loss"].startswith("ppo_clip (clip_high: 0.28)")


def test_processing_steps_are_explained_by_name_with_their_options(run: CommandLine) -> None:
    (one,) = explanation(run, "max_length")
    assert one["type"] == "clean step"
    assert one["below"] == {"tokens": "(whole number ≥ 1; required)"}
    (score,) = explanation(run, "processors.score")
    assert "exact_match" in score["below"]
    steps = {(one["kind"], one["part"]) for one in json.loads(run("list", "parts", "--json").stdout)["parts"]}
    assert {("clean step", "not_empty"), ("score step", "exact_match")} <= steps


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("trainer.lerning_rate", "trainer.learning_rate"),
        ("learning_rate", "trainer.learning_rate"),
        ("reinforse", "reinforce"),
        ("sampler.prioritized.alhpa", "sampler.alpha"),
    ],
)
def test_a_wrong_key_names_the_nearest_right_one(run: CommandLine, wrong: str, right: str) -> None:
    assert run("explain", wrong).code == f"error: There is no '{wrong}'; did you mean '{right}'?"


def test_a_key_that_is_like_no_other_is_an_error_too() -> None:
    with pytest.raises(NotFound):
        explained.explain("??")


# list


def test_the_lists_have_every_recipe_and_part_with_their_options(run: CommandLine) -> None:
    found = json.loads(run("list", "--json").stdout)
    assert [one["recipe"] for one in found["recipes"]] == list(RECIPES)
    parts = {(one["kind"], one["part"]): one["options"] for one in found["parts"]}
    assert parts["policy loss", "ppo_clip"] == {"clip_low": "0.2", "clip_high": "0.2", "dual_clip": "null"}
    assert "recipes" not in json.loads(run("list", "parts", "--json").stdout)
    assert "dapo " in run("list", "recipes").stdout


# show


def origins(run: CommandLine, content: dict[str, Any], *overrides: str) -> dict[str, tuple[Any, str]]:
    options = [word for one in overrides for word in ("--set", one)]
    shown = json.loads(run("show", file(content), *options, "--json").stdout)
    return {key: (one["value"], one["from"]) for key, one in shown.items()}


def test_each_value_says_where_it_comes_from(run: CommandLine) -> None:
    content = ONLINE | {"algorithm": {"name": "dapo", "clip_low": 0.1}}
    shown = origins(run, content, "trainer.steps=9", "algorithm.kl=k3")
    assert shown["name"] == ("first", "file")
    assert shown["trainer.steps"] == (9, "--set")
    assert shown["trainer.batch_size"] == (32, "default")
    assert shown["algorithm.name"] == ("dapo", "file")
    assert shown["algorithm.loss.name"] == ("ppo_clip", "recipe dapo")
    assert shown["algorithm.loss.clip_high"] == (0.28, "recipe dapo")
    assert shown["algorithm.loss.clip_low"] == (0.1, "file")
    assert shown["algorithm.loss.dual_clip"] == (None, "default")
    assert shown["algorithm.kl.name"] == ("k3", "--set")
    assert shown["algorithm.kl.coefficient"] == (0.001, "default")
    assert shown["sampler.name"] == ("fifo", "default")


def test_a_recipe_of_the_command_line_takes_the_place_of_the_one_in_the_file(run: CommandLine) -> None:
    content = ONLINE | {"algorithm": {"name": "dapo", "clip_low": 0.1}}
    shown = origins(run, content, "algorithm=grpo")
    assert shown["algorithm.name"] == ("grpo", "--set")
    assert shown["algorithm.loss.clip_low"] == (0.2, "default")


def test_a_list_of_steps_is_one_value_that_comes_from_who_wrote_it(run: CommandLine) -> None:
    shown = origins(run, ONLINE | {"processors": {"score": ["number_match"]}})
    assert shown["processors.score"] == ([{"name": "number_match", "limits": None, "weight": 1.0}], "file")
    assert shown["processors.clean"][1] == "default"


def test_several_losses_are_one_value_that_comes_from_who_chose_them(run: CommandLine) -> None:
    assert origins(run, OFFLINE | {"algorithm": "dpo"})["algorithm.loss"][1] == "recipe dpo"
    assert origins(run, OFFLINE | {"algorithm": "dpo"}, "algorithm.beta=1")["algorithm.loss"][1] == "--set"


def test_a_part_of_the_users_own_comes_from_the_file(run: CommandLine) -> None:
    content = ONLINE | {"algorithm": {"name": "grpo", "loss": {"name": "mine.py:loss", "width": 3}}}
    shown = origins(run, content)
    assert shown["algorithm.loss.function"] == ("mine.py:loss", "file")
    assert shown["algorithm.loss.options.width"] == (3, "file")


def test_a_value_with_a_line_break_stays_in_its_line(run: CommandLine) -> None:
    content = ONLINE | {"model": {"scratch": {}, "prompt_template": "{prompt}\n"}}
    assert '"{prompt}\\n"' in run("show", file(content)).stdout


# check


def test_a_configuration_without_mistakes_is_said_to_have_none(run: CommandLine) -> None:
    done = run("check", file(ONLINE))
    sample = "sample question as the model reads it (17 tokens):\n    What is 7 plus 5?\n"
    stops = "a response ends with <|endoftext|>\n"
    assert (done.code, done.stdout) == (0, f"{sample}{stops}run.yaml: no mistakes found\n")
    assert not Path("home").exists()


def test_each_mistake_is_a_line_and_the_exit_code_is_1(run: CommandLine) -> None:
    wrong = ONLINE | {"trainer": {"steps": 0, "lerning_rate": 1}, "sampler": "fif"}
    done = run("check", file(wrong), "--set", "max_uses=none")
    assert done.code == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("error: run.yaml: ") for line in lines)
    assert any("did you mean 'learning_rate'" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"path": "nowhere"}}, "nowhere"),
        ({"explorer": {"workflow": "none.py:attempt"}}, "there is no file none.py"),
        ({"explorer": {"environment": "none.py:Game"}}, "there is no file none.py"),
        ({"explorer": {"environment": {"name": "textarean"}}}, "did you mean 'textarena'?"),
        ({"algorithm": {"name": "grpo", "loss": "none.py:loss"}}, "there is no file none.py"),
    ],
)
def test_what_a_configuration_names_is_looked_for(
    run: CommandLine, change: dict[str, Any], said: str
) -> None:
    done = run("check", file(ONLINE | change))
    assert done.code == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


# schema


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """The schema as an editor reads it."""
    made: dict[str, Any] = json.loads(json.dumps(json_schema.schema()))
    return made


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_schema_accepts_what_is_shipped(schema: dict[str, Any], path: Path) -> None:
    assert accepts(schema, base.content_of(path))


@pytest.mark.parametrize("purpose", starting_file.CONTENTS)
def test_the_schema_accepts_starting_files(schema: dict[str, Any], purpose: str) -> None:
    assert accepts(schema, yaml.safe_load(starting_file.text(purpose, "begun")))


@pytest.mark.parametrize("name", RECIPES)
def test_the_schema_accepts_each_recipe_by_name(schema: dict[str, Any], name: str) -> None:
    assert accepts(schema, ONLINE | {"algorithm": name})
    assert accepts(schema, ONLINE | {"algorithm": {"name": name}})


FORMS: list[dict[str, Any]] = [
    {"algorithm": {"name": "grpo", "clip_high": 0.28, "kl": {"name": "k3", "coefficient": 0.04}}},
    {"algorithm": {"name": "rloo", "loss": "cispo", "correction": {"name": "m2po", "threshold": 2}}},
    {"algorithm": {"name": "grpo", "loss": {"clip_high": 0.3}}},
    {"algorithm": {"name": "mix", "expert_loss": "phi", "mu": 0.2}, "data": ["d"]},
    {"processors": {"score": ["defaults", {"name": "regex_match", "pattern": "a", "weight": 2}]}},
    {"sampler": "newest"},
    {"sampler": {"name": "prioritized", "alpha": 1}},
    {"trainer": {"steps": 3, "lora": {"targets": "q_proj"}, "publish_every": None}},
    {"trainer": {"steps": 3, "lora": {}}},
    {"trainer": {"steps": 3, "reference": {"name": "synchronised", "mix": 0.5}}, "max_staleness": None},
]
LOSSES: list[Any] = ["ipo", {"name": "sigmoid", "beta": 1}, [{"name": "sigmoid", "weight": 2}, "chosen_nll"]]


@pytest.mark.parametrize(
    "content",
    [
        *(ONLINE | form for form in FORMS),
        *(OFFLINE | {"algorithm": {"name": "dpo", "loss": one}} for one in LOSSES),
    ],
    ids=str,
)
def test_the_schema_accepts_the_short_forms_that_run_accepts(
    schema: dict[str, Any], content: dict[str, Any]
) -> None:
    RunConfig.model_validate(content)
    assert accepts(schema, content)


def test_the_schema_accepts_parts_of_the_users_own(schema: dict[str, Any]) -> None:
    for loss in ("mine.py:loss", {"name": "mine.py:loss", "width": 3}):
        content = ONLINE | {"algorithm": {"name": "grpo", "loss": loss}}
        RunConfig.model_validate(content)
        assert accepts(schema, content)


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": 1},
        {"trainer": {"steps": 3, "lerning_rate": 1}},
        {"trainer": {"steps": 0}},
        {"algorithm": "gpro"},
        {"algorithm": {"clip_high": 0.2}},
        {"algorithm": {"name": "grpo", "clip_hi": 1}},
        {"algorithm": {"name": "grpo", "mu": 0.2}},
        {"algorithm": {"name": "grpo", "loss": "ppo"}},
        {"algorithm": {"name": "grpo", "loss": {"name": "cispo", "width": 1}}},
        {"sampler": "fif"},
        {"sampler": {"alpha": 1}},
        {"sampler": {"name": "fifo", "alpha": 1}},
    ],
    ids=str,
)
def test_the_schema_refuses_what_run_refuses(schema: dict[str, Any], change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        RunConfig.model_validate(ONLINE | change)
    assert not accepts(schema, ONLINE | change)


def test_every_key_of_the_schema_has_its_text(schema: dict[str, Any]) -> None:
    properties = [one for made in schema["$defs"].values() for one in made.get("properties", {}).items()]
    texts = {key: "description" in made or "anyOf" in made for key, made in properties if key != "name"}
    assert [key for key, has_text in texts.items() if not has_text] == []


# All of them


@pytest.mark.parametrize("arguments", [("explain", "trainer"), ("list",), ("schema",), ("check", "run.yaml")])
def test_no_command_loads_torch(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(ONLINE))
    program = (
        "import sys, atexit; sys.argv = ['trinity-db', 'config', *sys.argv[1:]]\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        "from trinity_db.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "False")


def test_the_shell_completes_keys() -> None:
    from trinity_db.cli import config

    assert "trainer.learning_rate" in config._keys("trainer.le")
