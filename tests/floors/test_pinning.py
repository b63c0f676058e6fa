"""Pinned blocks stay in host memory for a time, whatever others evict."""

import pytest
from live_server import MODEL, LiveServer
from test_host_floor import PROMPTS, a_floored_engine, ask

from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.floors.pinning import open_pinned
from tools.random_workloads import audit_floors


def serve(engine, seconds, salt=None):
    reader = open_pinned(engine, PROMPTS[0], SamplingParams(max_tokens=1), pin_seconds=seconds, cache_salt=salt)
    while not reader.group.output:
        engine.step()


def pinned_engine(*seconds, salt=None, slots=10):
    """An engine that has served a prompt, pinned for some seconds each time; its floor's clock stands at 0."""
    engine = a_floored_engine(slots)
    engine.scheduler.pool.below.clock = lambda: 0
    for each in seconds:
        serve(engine, each, salt)
    return engine


def asked_by_others(engine, salts="vwxyz"):
    for salt in salts:
        ask(engine, PROMPTS[1], salt=salt)


@pytest.mark.parametrize(
    "seconds, later, found", [([60], 59, 20), ([60], 60, 0), ([None], 0, 0), ([60, 0], 0, 0), ([9, 60], 59, 20)]
)
def test_a_pinned_prompt_is_found_until_its_time_is_over(seconds, later, found):
    engine = pinned_engine(*seconds)
    asked_by_others(engine)
    engine.scheduler.pool.below.clock = lambda: later
    asked_by_others(engine, "abcde")
    assert ask(engine, PROMPTS[0]) == found


def test_half_of_the_slots_can_be_pinned():
    engine = pinned_engine(60, slots=7)
    assert len(engine.scheduler.pool.below.pins) == 3
    asked_by_others(engine)
    assert ask(engine, PROMPTS[0]) == 12


def test_another_salt_neither_finds_nor_ends_it():
    engine = pinned_engine(60, salt="a")
    serve(engine, 0, "b")
    asked_by_others(engine)
    assert [ask(engine, PROMPTS[0], salt=salt) for salt in ("b", "a")] == [0, 20]


def test_pins_outlast_an_interrupt_and_not_a_reset():
    engine = pinned_engine(60)
    asked_by_others(engine)
    engine.core.is_whole = False
    engine.core.settle()
    audit_floors(engine.scheduler.pool)
    asked_by_others(engine, "uvw")
    assert ask(engine, PROMPTS[0]) == 20
    engine.reset_prefix_cache()
    audit_floors(engine.scheduler.pool)
    assert ask(engine, PROMPTS[0]) == 0


def test_an_openai_client_pins_a_prompt():
    openai = pytest.importorskip("openai")

    def complete(server, ttl):
        hint = {"cache_control": {"type": "ephemeral", "ttl": ttl}}
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            message = {"role": "user", "content": "Once upon a time, there was a cat. " * 9}
            client.chat.completions.create(model=MODEL, messages=[message], max_tokens=2, extra_body=hint)

    with LiveServer(host_cache_bytes=2**23) as server:
        complete(server, "5m")
        assert len(server.engine.scheduler.pool.below.pins) > 3
        with pytest.raises(openai.BadRequestError, match="cache_control.ttl"):
            complete(server, "soon")
        complete(server, "0s")
        assert not server.engine.scheduler.pool.below.pins
    with LiveServer() as server, pytest.raises(openai.BadRequestError, match="host_cache_bytes is 0"):
        complete(server, "5m")
