"""What visitors of the page follow is asked once for all of them."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from tests.support.postgres import by_login
from tests.support.rows import Scene
from trinity_db.errors import DatabaseUnavailable, NotFound
from trinity_db.page import answers as answers_of_the_page
from trinity_db.page import questions
from trinity_db.page.answers import Answers
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Right, Visitor
from trinity_db.page.shares import AT_ONCE
from trinity_db.postgres.connection import Database

NAME = "run"


@pytest.fixture
def answers(scene: Scene) -> Iterator[Answers]:
    """Answers of a reader by a login that may only read."""
    with (
        closing(Database(by_login(scene.database.url))) as reading,
        closing(Reader(reading)) as reader,
    ):
        yield Answers(reader)


class Question:
    """Counts how often the database is asked it."""

    def __init__(self) -> None:
        self.asked = 0
        self.begins = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, database: Database) -> Any:
        with self._lock:
            self.asked += 1
        self.begins.set()
        with database.transaction(read_only=True) as tx:
            return tx.execute("SELECT clock_timestamp() AS at, pg_sleep(0.3)").fetchone()


def test_a_question_of_twenty_visitors_is_asked_once(answers: Answers) -> None:
    question = Question()

    async def look() -> list[Any]:
        found = await asyncio.gather(*(answers.ask(question) for _ in range(20)))
        return [*found, await answers.ask(question)]

    found = asyncio.run(look())
    assert (question.asked, len({one["at"] for one in found})) == (1, 1)


def test_questions_with_other_arguments_have_answers_of_their_own(scene: Scene, answers: Answers) -> None:
    other = scene.beside("other")

    async def look() -> list[dict[str, Any]]:
        asked = [partial(questions.run_in_full, name=name) for name in (NAME, other.run.name, NAME)]
        return list(await asyncio.gather(*map(answers.ask, asked)))

    first, second, third = asyncio.run(look())
    assert (first["run"], second["run"]) == (NAME, "other")
    assert third is first


def test_an_error_is_told_to_all_who_wait_and_the_next_visitor_asks_again(answers: Answers) -> None:
    missing = partial(questions.run_in_full, name="none")

    async def look() -> list[Any]:
        asked = [answers.ask(missing) for _ in range(3)]
        return list(await asyncio.gather(*asked, return_exceptions=True))

    for _ in range(2):
        assert [type(error) for error in asyncio.run(look())] == [NotFound] * 3


def test_a_visitor_who_leaves_takes_the_answer_from_no_other(answers: Answers) -> None:
    question = Question()

    async def look() -> Any:
        leaves = asyncio.create_task(answers.ask(question))
        stays = asyncio.create_task(answers.ask(question))
        await asyncio.to_thread(question.begins.wait)
        leaves.cancel()
        return await stays

    assert asyncio.run(look())["at"]
    assert question.asked == 1


def test_questions_that_a_visitor_invents_leave_threads_to_the_others(answers: Answers) -> None:
    eve, ann = Visitor("eve", Right.LOOK), Visitor("ann", Right.LOOK)
    invented = [Question() for _ in range(20)]

    async def look() -> int:
        asked = [asyncio.create_task(answers.ask(one, eve)) for one in invented]
        await asyncio.to_thread(invented[0].begins.wait)
        await answers.ask(Question(), ann)
        answered = sum(one.asked for one in invented)
        await asyncio.gather(*asked)
        return answered

    assert asyncio.run(look()) <= 2 * AT_ONCE


def test_old_answers_that_a_visitor_asks_for_leave_threads_to_the_others(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    eve, ann = Visitor("eve", Right.LOOK), Visitor("ann", Right.LOOK)
    invented = [Question() for _ in range(20)]

    async def look() -> int:
        await asyncio.gather(*(answers.ask(one, eve) for one in invented))
        monkeypatch.setattr(answers_of_the_page._Answer, "age", 1.5)
        invented[0].begins.clear()
        for one in invented:
            await answers.ask(one, eve)
        await asyncio.to_thread(invented[0].begins.wait)
        await answers.ask(Question(), ann)
        answered = sum(one.asked for one in invented) - len(invented)
        for renewal in [*answers._renewals.values()]:
            await renewal
        return answered

    assert asyncio.run(look()) <= 2 * AT_ONCE
    assert {one.asked for one in invented} == {2}


def test_a_question_for_which_nobody_waits_any_more_is_ended(answers: Answers) -> None:
    question = LongQuestion()

    async def look() -> None:
        visitors = [asyncio.create_task(answers.ask(question)) for _ in range(2)]
        await asyncio.to_thread(question.begins.wait)
        for one in visitors:
            one.cancel()
        await asyncio.gather(*visitors, return_exceptions=True)
        question.goes_on.set()
        assert await asyncio.to_thread(question.ends.wait, 30), (
            "a statement after the cancellation is ended too"
        )
        assert isinstance(question.error, DatabaseUnavailable)

    asyncio.run(look())
    assert question.asked == 1


class LongQuestion:
    """Two statements: the cancellation comes between them, and the second one takes a minute."""

    def __init__(self) -> None:
        self.begins, self.goes_on, self.ends = threading.Event(), threading.Event(), threading.Event()
        self.asked = 0
        self.error: Exception | None = None

    def __call__(self, database: Database) -> Any:
        self.asked += 1
        try:
            with database.transaction(read_only=True) as tx:
                tx.execute("SELECT 1")
                self.begins.set()
                self.goes_on.wait()
                tx.execute("SET LOCAL statement_timeout = 0")
                tx.execute("SELECT pg_sleep(60)")
        except Exception as error:
            self.error = error
            raise
        finally:
            self.ends.set()
