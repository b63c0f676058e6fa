"""The mailbox of a stream: it loses nothing, never blocks the producer, and wakes its reader."""

import asyncio
import random

import pytest
from fronts import CancelledAt

from lessons_lib.serving.mailbox import Mailbox


def test_the_reader_takes_all_that_arrived_in_order():
    async def story():
        mailbox = Mailbox()
        for item in range(5):
            mailbox.put(item)
        assert len(mailbox) == 5
        assert await mailbox.take() == [0, 1, 2, 3, 4] and len(mailbox) == 0
        mailbox.put(5)
        assert await mailbox.take() == [5]

    asyncio.run(story())


def test_a_waiting_reader_is_woken_once_for_all_items_of_a_step():
    async def story():
        mailbox = Mailbox()
        reader = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        assert not reader.done()
        mailbox.put("a")
        mailbox.put("b")
        assert await reader == ["a", "b"]

    asyncio.run(story())


def test_after_the_close_the_rest_is_taken_and_then_nothing():
    async def story():
        mailbox = Mailbox()
        mailbox.put(1)
        mailbox.close()
        mailbox.put(2)
        assert await mailbox.take() == [1]
        assert await mailbox.take() == [] and await mailbox.take() == []

    asyncio.run(story())


def test_the_close_wakes_a_waiting_reader():
    async def story():
        mailbox = Mailbox()
        reader = asyncio.create_task(mailbox.take())
        await asyncio.sleep(0)
        mailbox.close()
        assert await reader == []

    asyncio.run(story())


@pytest.mark.parametrize("has_arrived", [False, True])
def test_a_cancelled_take_loses_nothing(has_arrived):
    async def story():
        mailbox = Mailbox()
        attempt = CancelledAt(mailbox.take(), 1, has_arrived)
        asyncio.get_running_loop().call_soon(mailbox.put, 1)
        with pytest.raises(asyncio.CancelledError):
            await attempt
        mailbox.put(2)
        assert await mailbox.take() == [1, 2] if has_arrived else (await mailbox.take())[-1] == 2

    asyncio.run(story())


def test_random_producers_and_cancelled_readers():
    async def story(seed):
        chance, mailbox, taken, sent = random.Random(seed), Mailbox(), [], 0
        while sent < 200:
            reader = asyncio.create_task(mailbox.take())
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
                for _ in range(chance.randrange(3)):
                    mailbox.put(sent)
                    sent += 1
            if chance.random() < 0.5:
                reader.cancel()
            elif not reader.done():
                mailbox.put(sent)
                sent += 1
            try:
                taken += await reader
            except asyncio.CancelledError:
                continue
        mailbox.close()
        taken += await mailbox.take()
        assert taken == list(range(sent))

    for seed in range(20):
        asyncio.run(story(seed))


def test_clear_drops_what_nobody_takes():
    async def story():
        mailbox = Mailbox()
        mailbox.put(1)
        mailbox.clear()
        mailbox.put(2)
        assert await mailbox.take() == [2]

    asyncio.run(story())
