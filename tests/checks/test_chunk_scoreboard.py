"""The scoreboard of lesson 05's prompts in pieces counts what one counts with a pencil, and names what is wrong."""

import pytest

from lessons_lib.attention.packing import pack
from lessons_lib.batching.ragged_batching import admit, forward, ragged_step, retire
from lessons_lib.batching.request import Request
from lessons_lib.checks.lesson_05.scoreboard import (
    chunk_scoreboard,
    count_run,
    first_come_first_served,
    whole_prompts,
    why_wrong,
)


def known(request):
    return request.prompt_ids + request.output_ids


def shares(order, total=None):
    """Every request gets one token; what is left goes to the requests in this order."""

    def sizes(lengths, limit):
        given, left = [1] * len(lengths), min(total or limit, limit) - len(lengths)
        for i in sorted(range(len(lengths)), key=lambda i: order(lengths[i])):
            more = min(max(left, 0), lengths[i] - 1)
            given[i] += more
            left -= more
        return given

    return sizes


def by_turns(lengths, limit):
    given = [1] * len(lengths)
    while sum(given) < limit and given != lengths:
        for i, length in enumerate(lengths):
            given[i] += given[i] < length and sum(given) < limit
    return given


def stepping(
    sizes=shares(lambda length: length),
    cached=lambda request: request.num_computed_tokens,
    start=lambda request: request.num_computed_tokens,
    has_token=lambda request: request.num_computed_tokens == len(known(request)),
    count=lambda part, rest: len(part),
    pick=lambda logits: logits.argmax(dim=-1).tolist(),
    times=1,
    end=lambda batch: (retire(batch), admit(batch)),
):
    def step(batch, max_num_batched_tokens, forward=forward):
        rests = [known(request)[start(request) :] for request in batch.running]
        parts = [rest[:size] for rest, size in zip(rests, sizes([*map(len, rests)], max_num_batched_tokens))]
        packed = pack([part for part in parts if part], [*map(cached, batch.running)][: len([p for p in parts if p])])
        for _ in range(times):
            tokens = pick(forward(batch, packed))
        for request, rest, part, token in zip(batch.running, rests, parts, tokens):
            request.num_computed_tokens += count(part, rest)
            if has_token(request):
                request.append_token(token)
        end(batch)

    return step


RIGHT = {
    "first come first served": first_come_first_served,
    "shortest first": stepping(),
    "longest first": stepping(shares(lambda length: -length)),
    "by turns": stepping(by_turns),
    "smaller rows": stepping(shares(lambda length: length, total=9)),
}
WRONG = {
    "a row has 13 tokens, more than 3": whole_prompts,
    "1 of them computed, and already a new token": stepping(has_token=lambda request: True),
    "and no new token: the last piece gives one": stepping(has_token=lambda request: bool(request.output_ids)),
    "has a prompt of 3 tokens, 1 of them computed; its num_computed_tokens is 3": stepping(
        count=lambda part, rest: len(rest), has_token=lambda request: False
    ),
    "it raised ValueError": lambda batch, limit, forward=forward: pack([[]], [0]),
    "each needs at least one token": stepping(lambda lengths, limit: [limit, *[0] * (len(lengths) - 1)]),
    "a step computes nothing": lambda batch, limit, forward=forward: None,
    "calls `forward` twice": stepping(times=2),
    "1 tokens in its cache; the row says 0": stepping(start=lambda request: 0, cached=lambda request: 0),
    "the row had other tokens than its next known ones": stepping(start=lambda request: 0),
    "should get token": stepping(pick=lambda logits: [0] * len(logits)),
    "it raised IllegalTransition": stepping(end=lambda batch: None),
}


@pytest.mark.parametrize("name", RIGHT)
def test_every_right_way_passes(name):
    assert why_wrong(RIGHT[name]) is None


@pytest.mark.parametrize("says", WRONG)
def test_what_is_wrong_is_said(says):
    assert says in why_wrong(WRONG[says])


def arrivals(*sizes):
    """Requests of (prompt length, answer length) that all arrive at the start."""
    return [(0, Request(f"R{n}", list(range(length)), limit)) for n, (length, limit) in enumerate(sizes)]


def test_what_is_counted():
    log = count_run(first_come_first_served, arrivals((2, 4), (70, 2)), limit=32)
    assert log.rows == [32, 32, 10, 2]  # 2 + 30, 1 + 31, 1 + 9, 1 + 1
    assert log.waits() == [32, 74] and log.gaps() == [32, 10, 2, 2]
    whole = count_run(whole_prompts, arrivals((2, 4), (70, 2)), limit=100)
    assert whole.rows == [72, 2, 1, 1] and whole.waits() == [72, 72]


def test_the_table():
    whole, pieces, yours = chunk_scoreboard(RIGHT["shortest first"]).rows
    assert pieces[2:4] == yours[2:4] == [32, 32] < whole[2:4] and float(yours[4]) < float(pieces[4])
    table = chunk_scoreboard(lambda batch, limit, forward=forward: ragged_step(batch, forward))
    assert table.rows[-1][1:] == ["–"] * 4 and "more than 3" in table.verdict
