"""`query.to_iterable_dataset()`: each row once, from where a state says, also in workers of a DataLoader."""

import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch.utils.data

import trinity_db
from tests.support.postgres import by_login, execute
from tests.support.rows import Scene
from trinity_db.api import iterable_dataset
from trinity_db.api.conditions import is_ordered
from trinity_db.errors import ConfigError, WrongSelect


@pytest.fixture
def store(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Iterator[trinity_db.Store]:
    """Twelve rows, by a login that may only read, in pages of five."""
    scene.make_ready(4, (1.0, 0.0, 0.5))
    monkeypatch.setattr(iterable_dataset, "PAGE_ROWS", 5)
    with trinity_db.connect(by_login(scene.database.url)) as store:
        yield store


def ids_of(store: trinity_db.Store) -> list[int]:
    return [row["id"] for row in store.run("run").experiences().select("id").order_by("id")]


def test_rows_are_those_of_the_query_in_the_order_of_their_ids(store: trinity_db.Store) -> None:
    rows = store.run("run").experiences().where("reward > %s", 0).select("reward", "id")
    dataset = rows.to_iterable_dataset()
    expected = rows.order_by("id").to_list()
    assert list(dataset) == expected
    assert list(dataset) == expected, "the next pass begins anew"
    assert list(rows.where("false").to_iterable_dataset()) == []
    loader = torch.utils.data.DataLoader(dataset, batch_size=5)
    assert [batch["id"].tolist() for batch in loader] == [
        [row["id"] for row in expected[:5]],
        [row["id"] for row in expected[5:]],
    ]


def test_arrays_are_of_numpy_and_an_id_that_was_not_selected_stays_away(
    scene: Scene, store: trinity_db.Store
) -> None:
    execute(
        scene.database.url,
        "UPDATE trinity.payload SET data = NULL, pruned_at = now() WHERE experience_id % 2 = 0",
    )
    rows = store.run("run").experiences(arrays=True).select("response")
    (row, *_), pruned = list(rows.where("id % 2 = 1").to_iterable_dataset()), rows.where("id % 2 = 0")
    assert list(row) == ["response", "token_ids", "action_mask", "logprobs", "versions"]
    assert (row["token_ids"].dtype, row["token_ids"].tolist()) == (np.int32, [0, 1, 2, 3, 4])
    assert (row["action_mask"].dtype, row["action_mask"].sum()) == (np.bool_, 2)
    assert row["token_ids"].flags.writeable
    assert {row["token_ids"] for row in pruned.to_iterable_dataset()} == {None}


@pytest.mark.parametrize("number", [0, 1, 4, 5, 6, 11, 12])
def test_a_pass_continues_where_its_state_says(scene: Scene, store: trinity_db.Store, number: int) -> None:
    ids = ids_of(store)
    rows = store.run("run").experiences().select("id")
    dataset = rows.to_iterable_dataset()
    begun = iter(dataset)
    read = [next(begun)["id"] for _ in range(number)]
    state = json.loads(json.dumps(dataset.state_dict()))
    if number:
        scene.make_ready(1)  # after the start of the pass: of the next one
    continued = rows.to_iterable_dataset()
    continued.load_state_dict(state)
    assert continued.state_dict() == state
    assert read + [row["id"] for row in continued] == ids
    assert [row["id"] for row in continued][: len(ids)] == ids, "only one iteration continues"


def test_a_new_iteration_after_one_that_was_only_made_begins_anew(store: trinity_db.Store) -> None:
    """torchdata makes an iterator with a state, and another one if the state is that of a finished pass."""
    dataset = store.run("run").experiences().select("id").to_iterable_dataset()
    list(dataset)
    dataset.load_state_dict(dataset.state_dict())
    iter(dataset)
    assert len(list(dataset)) == 12


class WithState(torch.utils.data.IterableDataset[Any]):
    """Rows with the state after them, as a loader asks for it in a worker."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        for row in self.dataset:
            yield row["id"], self.dataset.state_dict()


def test_workers_have_parts_of_the_rows_and_continue_with_them(store: trinity_db.Store) -> None:
    dataset = store.run("run").experiences().select("id").to_iterable_dataset()
    loaded = torch.utils.data.DataLoader(WithState(dataset), batch_size=None, num_workers=2)
    rows = iter(loaded)
    first = [next(rows) for _ in range(5)]
    states = {state["worker"]: state for _, state in first}
    assert len(states) == 2

    def load(worker: int) -> None:
        info: Any = torch.utils.data.get_worker_info()
        info.dataset.dataset.load_state_dict(states[worker])

    rest = torch.utils.data.DataLoader(
        WithState(dataset), batch_size=None, num_workers=2, worker_init_fn=load
    )
    assert sorted([id for id, _ in first] + [id for id, _ in rest]) == ids_of(store)
    dataset.load_state_dict(states[1])
    with pytest.raises(ConfigError, match=r"worker 1 of 2.*continue with as many workers as before"):
        iter(dataset)


def test_a_process_that_is_not_forked_opens_its_own_connection(store: trinity_db.Store) -> None:
    dataset = store.run("run").experiences().select("id").to_iterable_dataset()
    copied = pickle.loads(pickle.dumps(dataset))
    assert [row["id"] for row in copied] == ids_of(store)
    copied._query._database.close()


def test_rows_that_a_pass_cannot_continue_in_are_refused(store: trinity_db.Store) -> None:
    rows = store.run("run").experiences()
    for ordered in (
        rows.order_by("reward"),
        rows.limit(3),
        rows.order_by("reward").limit(3).where("id > 0"),
        store.run("run").metrics(),
        store.sql("SELECT id FROM run ORDER BY name"),
    ):
        with pytest.raises(ConfigError, match="leave out the query's own ORDER BY and LIMIT"):
            ordered.to_iterable_dataset()
    for nameless in (store.sql("SELECT name FROM run"), store.sql("SELECT name AS id FROM run")):
        with pytest.raises(ConfigError, match="select one AS id"):
            nameless.to_iterable_dataset()
    with pytest.raises(ConfigError, match="Two rows have the id 1: select a unique whole number"):
        list(store.sql("SELECT n / 2 AS id FROM generate_series(2, 9) AS n").to_iterable_dataset())
    # Those with the id 5 are on two pages.
    twice = store.sql("SELECT least(n, 5) AS id FROM generate_series(1, 6) AS n").to_iterable_dataset()
    with pytest.raises(ConfigError, match="Two rows have the id 5"):
        list(twice)
    with pytest.raises(ConfigError, match="A row has no id"):
        list(store.sql("SELECT NULL::bigint AS id").to_iterable_dataset())
    with pytest.raises(ConfigError, match="no state of these rows"):
        rows.to_iterable_dataset().load_state_dict({"epoch": 1})
    with pytest.raises(WrongSelect, match="the columns are id, run"):
        list(rows.where("rewrd > 0").to_iterable_dataset())


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("SELECT id FROM run order  by id", True),
        ("SELECT id FROM run LIMIT 3", True),
        ("SELECT id FROM run FETCH FIRST ROW ONLY", True),
        ("(SELECT id FROM run ORDER BY id)", False),
        ("SELECT row_number() OVER (ORDER BY id) AS limit FROM run r WHERE r.offset > 0", False),
        (
            "SELECT 'it''s ORDER BY', E'\\' LIMIT 1', \"ORDER BY\", $a$ ORDER BY $a$ FROM run -- LIMIT 1",
            False,
        ),
        ("SELECT id FROM run /* ORDER BY id */", False),
        ("SELECT ')' FROM run ORDER BY id", True),
    ],
)
def test_an_order_of_the_text_is_seen(text: str, is_own: bool) -> None:
    assert is_ordered(text) == is_own
