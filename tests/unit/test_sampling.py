"""Samplers as a configuration names them: what is refused, and the SELECT that parts become."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from trinity_db.config.base import load
from trinity_db.errors import ConfigError
from trinity_db.run.configuration import RunConfig
from trinity_db.store.custom_samplers import Choice
from trinity_db.store.samplers import Picks, Sampler
from trinity_db.trainer.config import SamplerConfig
from trinity_db.trainer.loop.sampling import sampler_of

PLAIN = """\
name: run
model: {scratch: {alphabet: ab}}
taskset: {math: 1, code: 1}
algorithm: grpo
trainer: {steps: 5}
processors: {score: [number_match]}
"""


def of(name: str, **options: Any) -> Picks:
    adapter: TypeAdapter[SamplerConfig] = TypeAdapter(SamplerConfig)
    return sampler_of(adapter.validate_python({"name": name, **options}))


def select(name: str, **options: Any) -> str:
    found = of(name, **options)
    assert isinstance(found, Choice)
    return found.select.text


def test_a_sampler_without_a_condition_is_the_plain_one() -> None:
    assert of("newest") == Sampler("newest")
    assert of("prioritized") == Sampler("prioritized", 0.6, 0.4)


def test_a_condition_stands_between_brackets_of_its_own() -> None:
    text = select("uniform", where="uses = 0 or true -- all")
    assert text == "SELECT id, 1 AS weight\nFROM drawable\nWHERE (\nuses = 0 or true -- all\n) IS TRUE"


def test_the_first_part_whose_conditions_are_met_has_a_group() -> None:
    parts = {
        "used": {"rows": "replayed", "sampler": {"name": "prioritized", "alpha": 1}},
        "math": {"taskset": "it's 5%", "sampler": {"name": "newest", "where": "level > 2"}},
        "rest": {},
    }
    text = select("mix", parts=parts)
    assert (
        "WHEN uses > 0 THEN 'used'\nWHEN taskset IN ('it''s 5%%') AND (\nlevel > 2\n) IS TRUE THEN 'math'"
        in text
    )
    assert "WHEN true THEN 'rest'\nEND AS part FROM drawable" in text
    assert (
        "WHEN 'used' THEN CASE WHEN priority > 0 THEN power(priority, 1.0) ELSE 0 END\nWHEN 'math' THEN 1"
        in text
    )
    choice = of("mix", parts=parts)
    assert isinstance(choice, Choice)
    assert [(part.name, part.order, part.beta) for part in choice.parts] == [
        ("used", "chance", 0.4),
        ("math", "newest", 0.0),
        ("rest", "oldest", 0.0),
    ]


def test_a_select_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "draw.sql"
    file.write_text("select id, 1 as weight from drawable;")
    assert select("sql", query=str(file)) == "select id, 1 as weight from drawable;"
    with pytest.raises(ConfigError, match=r"sampler.query: there is no file .*other\.sql"):
        of("sql", query=str(tmp_path / "other.sql"))


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ("{name: mix, parts: {a: {rows: replayed}}}", "takes rows that were used before, and max_uses 1"),
        ("{name: mix, parts: {a: {taskset: maths}}}", "takes groups of 'maths'; did you mean 'math'?"),
        ("{name: mix, parts: {a: {}}, experts: {set: 1}}", "takes none in addition to rollout groups"),
        ("{name: mix, parts: {}}", "sampler.parts"),
        ("{name: mix, parts: {a b: {}}}", "sampler.parts"),
        ("{name: mix, parts: {a: {share: 0}}}", "sampler.parts.a.share"),
        ("{name: mix, parts: {a: {shares: 2}}}", "unknown key"),
        ("{name: mix, parts: {a: {sampler: sql}}}", "sampler.parts.a.sampler"),
        ("{name: stratified}", "sampler.by"),
        ("{name: stratified, by: taskset, edges: [1]}", "each taskset is a class: remove edges"),
        ("{name: stratified, by: length, edges: [5, 5]}", "edges must ascend, for example [0.25, 0.5, 0.75]"),
        ("{name: sql}", "sampler.query"),
        ("{name: sql, query: select 1, seconds: 0}", "sampler.seconds"),
        ("{name: sql, query: select 1, where: x}", "unknown key"),
    ],
)  # fmt: skip
def test_a_sampler_that_cannot_draw_is_refused(tmp_path: Path, sampler: str, message: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"{PLAIN}sampler: {sampler}\n")
    with pytest.raises(ConfigError) as error:
        load(RunConfig, file)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_imported_rows_are_passed_over_without_a_sampler(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    offline = "name: run\nmodel: {scratch: {alphabet: ab}}\ndata: [set]\nalgorithm: sft\n"
    file.write_text(f"{offline}sampler: {{name: fifo, where: uses = 0}}")
    with pytest.raises(ConfigError, match="in passes over all of them: leave out sampler"):
        load(RunConfig, file)


def test_a_data_set_with_a_share_is_one_of_the_runs(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    beside = PLAIN.replace("algorithm: grpo", "algorithm: mix\ndata: [books]")
    file.write_text(f"{beside}sampler: {{name: mix, parts: {{a: {{}}}}, experts: {{bocks: 1}}}}")
    with pytest.raises(ConfigError, match=r"sampler\.experts has a share of 'bocks'; did you mean 'books'\?"):
        load(RunConfig, file)
