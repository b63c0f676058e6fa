"""Lesson 14's player: requests on their way through a server, recorded from the lesson's owner and mailboxes."""

import asyncio
from itertools import pairwise

from engine_cases import an_engine, greedy

from lessons_lib.recording.server_turns import Reader, record_server
from lessons_lib.serving.messages import AddRequest


def test_every_token_goes_through_its_mailbox_to_its_reader():
    def ask(name, length):
        return AddRequest(name, [1] * length, greedy(6, ignore_eos=True))

    engine = an_engine()
    readers = {"A": Reader(ask("A", 3)), "B": Reader(ask("B", 4), pause=3), "C": Reader(ask("C", 5), leaves_after=2)}
    moments = asyncio.run(record_server(engine, readers))
    for before, after in pairwise(moments):
        for name in readers:
            through = [len(each.read[name]) + len(each.boxes[name]) for each in (before, after)]
            assert through[0] <= through[1], "none is lost on the way"
            assert after.read[name][: len(before.read[name])] == before.read[name]
    last = moments[-1]
    assert [len(last.read[name]) for name in "ABC"] == [6, 6, 2] and not last.in_engine and not engine.requests
    assert last.ended == {"A": "has read all", "B": "has read all", "C": "has left"}
    assert max(len(each.boxes["B"]) for each in moments) == 2, "a slow reader's mailbox fills up"
    assert max(len(each.boxes["A"]) for each in moments) == 1, "and holds up no other"
    events = [each.event for each in moments]
    assert "Turn 1 begins with add A, add B, add C" in events
    left = next(n for n, each in enumerate(moments) if "abort C" in each.commands)
    begins = next(each for each in moments[left:] if "abort C" in each.event and "begins" in each.event)
    assert begins.in_engine == ("A", "B") and not begins.commands and begins.is_computing
