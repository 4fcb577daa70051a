"""A visitor's questions leave threads to those of others."""

import asyncio

import pytest

from tests.support.waiting import until
from trinity_db.errors import TrinityError
from trinity_db.page.rights import Right, Visitor
from trinity_db.page.shares import AT_ONCE, WAITING, Shares

ANN, BOB = Visitor("ann", Right.LOOK), Visitor("bob", Right.LOOK)


def test_a_visitor_has_some_turns_at_a_time_and_others_do_not_wait_for_them() -> None:
    async def ask() -> None:
        shares, ends, asked, under_way = Shares(), asyncio.Event(), 0, 0

        async def question() -> None:
            nonlocal asked, under_way
            asked += 1
            async with shares.turn(ANN):
                under_way += 1
                await ends.wait()
                under_way -= 1

        every = [asyncio.create_task(question()) for _ in range(AT_ONCE + WAITING)]
        await until(lambda: asked == len(every), "every question is asked")
        assert under_way == AT_ONCE
        async with shares.turn(BOB), shares.turn(None):
            pass
        with pytest.raises(TrinityError, match="of your queries are in progress"):
            async with shares.turn(ANN):
                pass
        every[-1].cancel()  # a visitor who leaves waits no longer
        ends.set()
        await asyncio.wait(every)
        assert under_way == 0
        async with shares.turn(ANN):
            pass

    asyncio.run(ask())
