"""One engine's process, several fronts: each gets its own, and one that dies leaves nothing behind."""

import asyncio
import pickle
import signal

import pytest
import zmq
from engine_cases import check_that_nothing_is_left, greedy
from fronts import LIMIT, counting_engine, hanging_engine, read, until

from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.engine_process import EngineProcess
from lessons_lib.serving.fronts import CLOSE, PARENT, Fronts
from lessons_lib.serving.messages import (
    AbortRequest,
    Accepted,
    AddRequest,
    EngineDead,
    EngineReady,
    EngineStatus,
    FrontJoined,
    FrontLeft,
    NewTokens,
    Refused,
    RequestEnded,
)
from lessons_lib.serving.shared_engine import SharedEngine


class Link:
    """Both ends of one front's connection, in this process."""

    def __init__(self, context, name):
        self.address = f"inproc://{name}"
        self.own = context.socket(zmq.PAIR)
        self.own.bind(self.address)

    def send(self, *commands):
        for command in commands:
            self.own.send(command if isinstance(command, bytes) else pickle.dumps(command))

    def messages(self):
        """What has arrived, a list of events each."""
        found = []
        while self.own.poll(0):
            found.append(pickle.loads(self.own.recv()))
        return found


@pytest.fixture
def linked():
    """(the engine's side, the parent's link, links of two fronts that have joined)."""
    context = zmq.Context()
    links = [Link(context, index) for index in range(3)]
    parent = context.socket(zmq.PAIR)
    parent.connect(links[0].address)
    engine = counting_engine()
    fronts = Fronts(engine, parent)
    links[0].send(*(FrontJoined(index, links[index].address) for index in (1, 2)))
    turn(fronts)
    for link in links:
        (first, *_) = link.messages()
        assert [type(event) for event in first] == [EngineReady, EngineStatus]
    yield fronts, *links
    context.destroy(0)


def turn(fronts):
    fronts.apply(fronts.received(wait=False))
    fronts.step()


def test_each_front_hears_of_its_own_requests_one_message_a_step(linked):
    fronts, parent, one, two = linked
    one.send(AddRequest("1:a", [1], greedy(3, ignore_eos=True)), AddRequest("1:b", [11], greedy(3, ignore_eos=True)))
    two.send(AddRequest("2:a", [21], greedy(3, ignore_eos=True)))
    for _ in range(3):
        turn(fronts)
    for link, names in ((one, ["1:a", "1:b"]), (two, ["2:a"])):
        answers, *steps = link.messages()
        assert [(type(each), each.request_id) for each in answers] == [(Accepted, name) for name in names]
        assert len(steps) == 3
        for message in steps:
            assert isinstance(message[0], NewTokens) and isinstance(message[-1], EngineStatus)
            assert [token.request_id for token in message[0].tokens] == names
        assert {each.request_id for each in steps[-1] if isinstance(each, RequestEnded)} == set(names)
        assert steps[-1][-1].metrics["new_tokens"] == 9, "of the whole engine"
    assert all([type(event) for event in message] == [EngineStatus] for message in parent.messages())
    check_that_nothing_is_left(fronts.engine)


def test_a_front_without_requests_is_told_only_now_and_then(linked):
    fronts, _, one, two = linked
    for side in fronts.sides.values():
        side.loop.clock = lambda: 0.0  # no time passes
    one.send(AddRequest("1:a", [1], greedy(6, ignore_eos=True)))
    for _ in range(5):
        turn(fronts)
    assert len(one.messages()) == 6 and two.messages() == []
    turn(fronts)
    ((last,),) = two.messages()
    assert last.metrics["new_tokens"] == 6 and last.gauges.running == 0, "the engine is idle now"


def test_an_abort_that_leaves_the_engine_idle_is_told_to_all(linked):
    fronts, parent, one, two = linked
    one.send(AddRequest("1:a", [1], greedy(6, ignore_eos=True)))
    turn(fronts)
    two.send(AbortRequest("1:a"))
    turn(fronts)
    assert fronts.engine.requests, "it isn't this front's"
    two.messages()
    one.send(AbortRequest("1:a"))
    turn(fronts)
    assert two.messages()[-1][-1].gauges.running == parent.messages()[-1][-1].gauges.running == 0
    check_that_nothing_is_left(fronts.engine)


def test_a_front_that_leaves_leaves_nothing(linked):
    fronts, parent, one, two = linked
    for link in (one, two):
        name = "1:" if link is one else "2:"
        link.send(*(AddRequest(f"{name}{index}", [index], greedy(20, ignore_eos=True)) for index in range(3)))
    turn(fronts)
    one.own.close(0)  # it was killed
    for _ in range(3):
        turn(fronts)
    parent.send(FrontLeft(1), FrontLeft(1), FrontLeft(9))
    turn(fronts)
    assert set(fronts.engine.requests) == {"2:0", "2:1", "2:2"} and set(fronts.sides) == {PARENT, 2}
    while fronts.engine.has_unfinished():
        turn(fronts)
    ended = [each for message in two.messages() for each in message if isinstance(each, RequestEnded)]
    assert [len(each.completions[0].token_ids) for each in ended] == [20] * 3
    check_that_nothing_is_left(fronts.engine)


def test_commands_of_a_front_that_has_just_left_are_dropped(linked):
    fronts, parent, one, _ = linked
    one.send(AddRequest("1:a", [1], greedy(5)))
    parent.send(FrontLeft(1))
    turn(fronts)
    check_that_nothing_is_left(fronts.engine)


def test_the_same_id_twice_is_refused_and_harms_neither(linked):
    fronts, _, one, two = linked
    one.send(AddRequest("same", [1], greedy(2, ignore_eos=True)))
    turn(fronts)
    two.send(AddRequest("same", [2], greedy(2, ignore_eos=True)))
    turn(fronts)
    (refused,) = two.messages()[0]
    assert isinstance(refused, Refused) and isinstance(refused.error, BadRequest)
    assert any(isinstance(each, RequestEnded) for message in one.messages() for each in message)


def test_only_the_parent_ends_the_engine(linked):
    fronts, parent, one, _ = linked
    one.send(AddRequest("1:a", [1], greedy(20, ignore_eos=True)))
    turn(fronts)
    parent.send(CLOSE)
    assert fronts.received(wait=True) is None
    fronts.close()
    check_that_nothing_is_left(fronts.engine)


def shared_by(engine, number, **options):
    return SharedEngine(
        number, lambda address, secret: engine.let_join(number, address, secret), engine.give_up, **options
    )


def run(story):
    asyncio.run(asyncio.wait_for(story(), LIMIT))


@pytest.mark.parametrize("transport", ["ipc", pytest.param("tcp", marks=pytest.mark.nightly)])
def test_fronts_of_a_real_process(transport):
    """Joining, streams side by side, a front that vanishes, and an engine that is killed."""

    async def story():
        async with EngineProcess(counting_engine, num_threads=1, transport=transport) as engine:
            fronts = [shared_by(engine, number, transport=transport) for number in (1, 2)]
            for front in fronts:
                await front.__aenter__()
                assert front.address.startswith(transport) and front.info.block_size == 4
            streams = [
                await front.add([10 * number], greedy(8, ignore_eos=True), request_id="same")
                for number, front in enumerate(fronts)
            ]
            for number, stream in enumerate(streams):
                arrived, end = await read(stream)
                assert [token.token for token in arrived[0]] == [10 * number + 1 + index for index in range(8)]
                assert end.completions[0].token_ids == [token.token for token in arrived[0]]

            lost, kept = fronts
            for _ in range(3):
                await lost.add([1], greedy(150, ignore_eos=True))
            stream = await kept.add([5], greedy(100, ignore_eos=True))
            lost._socket.close(0)  # as when its process is killed
            engine.let_leave(1)
            assert len((await read(stream))[0][0]) == 100
            # Aborted, or done before the engine had heard of it: six have ended.
            await until(lambda: kept.gauges.used_blocks == 0 and sum(kept.metrics()["requests"].values()) == 6)
            await until(lambda: kept.gauges == engine.gauges)  # each hears of it by a message of its own

            # So many that the last isn't done by then, however busy this machine is.
            for _ in range(30):
                stream = await kept.add([5], greedy(150, ignore_eos=True))
            engine.process.send_signal(signal.SIGKILL)
            reason = await engine.wait_until_dead()
            assert reason == "EngineDead: the engine's process was killed by SIGKILL."
            kept.note_death(reason)
            assert (await stream.end()).error == reason == kept.error
            with pytest.raises(EngineDead, match="SIGKILL"):
                await kept.add([1])
            await kept.aclose()

    run(story)


@pytest.mark.nightly
def test_a_front_whose_step_hangs_lets_the_parent_kill_the_engine():
    async def story():
        async with EngineProcess(hanging_engine, num_threads=1, step_timeout=None) as engine:
            async with shared_by(engine, 1, step_timeout=0.5) as front:
                stream = await front.add([7, 7, 7], greedy(5))
                assert "the engine hangs" in (await stream.end()).error
            assert "the engine hangs" in await engine.wait_until_dead() and engine.process.returncode == -signal.SIGKILL

    run(story)
