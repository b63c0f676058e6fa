"""The mailbox of a stream under random producers and cancelled readers. The check of exercise 14.1 has the single cases."""

import asyncio
import random

from lessons_lib.serving.mailbox import Mailbox


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


async def test_clear_drops_what_nobody_takes():
    mailbox = Mailbox()
    mailbox.put(1)
    mailbox.clear()
    mailbox.put(2)
    assert len(mailbox) == 1 and await mailbox.take() == [2]
