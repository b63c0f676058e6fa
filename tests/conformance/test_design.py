"""The design task of lesson 17: the machine refuses what it can't hold, and the clock does what lesson 09's does."""

import pytest

from lessons_lib.conformance.design import grading
from lessons_lib.conformance.design.cluster import serve
from lessons_lib.conformance.design.grading import AGING, FIRST, GOOD, goodput_of, rival, try_design
from lessons_lib.conformance.design.machine import BLOCK_SIZE, Design, DoesNotFit, Machine
from lessons_lib.conformance.design.workload import SYSTEM_TOKENS, workload
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.scheduling.scheduler import Scheduler
from lessons_lib.scheduling.simulator import simulate


def test_one_replica_serves_as_the_simulator_of_lesson_09():
    asks = [ask for ask in workload(3, chats=40, documents=20) if ask.tenant is None]
    machine = Machine()
    simulated = simulate(
        Scheduler(BlockPool(512, BLOCK_SIZE), max_num_seqs=32, max_num_batched_tokens=512),
        [ask.arrival for ask in asks],
        machine.step_cost(4),
    )
    expected = sum(ask.verdict(simulated.times[ask.arrival.id]) == "good" for ask in asks)
    assert serve(Design(), asks).counts["document", "good"] == expected > 0


def test_a_cached_system_prompt_saves_its_tokens():
    asks = [ask for ask in workload(4, chats=30, documents=1) if ask.tenant in (0, None)]
    assert sum(ask.tenant == 0 for ask in asks) > 2
    forgetful = Machine(prefixes_per_device=0)
    kept, lost = (goodput_seconds(asks, machine) for machine in (Machine(), forgetful))
    assert lost > kept
    assert all(ask.arrival.prompt_tokens > SYSTEM_TOKENS for ask in asks if ask.kind == "chat")


def goodput_seconds(asks, machine):
    """When the last token came, on a machine of one replica: read off the clock by a policy that watches."""
    clocks = []

    def watching(scheduler, sequence):
        clocks.append(len(sequence.prompt_ids))
        return True

    serve(Design(admission=watching), asks, machine)
    return sum(clocks)


def test_a_queue_that_is_full_refuses():
    load = serve(Design(max_waiting=0), workload(1, chats=40, documents=5))
    assert load.counts["chat", "refused"] > 10
    assert sum(load.counts.values()) == 45


def test_the_same_seed_is_the_same_workload_and_a_design_can_be_used_again():
    assert workload(5) == workload(5) != workload(6)
    design = rival(GOOD)
    assert goodput_of(design, (1,)) == goodput_of(design, (1,))


def test_what_does_not_fit_names_value_limit_and_remedy():
    with pytest.raises(
        DoesNotFit, match=r"600 and 32 slots of 2 blocks are 664 blocks; a replica of 4 devices has 640"
    ):
        serve(Design(num_blocks=600), workload(1, chats=1, documents=1))
    with pytest.raises(DoesNotFit, match=r"max_num_seqs is True; it must be an int"):
        Design(max_num_seqs=True).devices_per_replica(Machine())
    with pytest.raises(DoesNotFit, match=r"admission is 3; it must be a function"):
        Design(admission=3).devices_per_replica(Machine())


def test_rivals_are_in_order():
    first, aging, good = (grading.rival_goodput(name).mean for name in (FIRST, AGING, GOOD))
    assert 2 * first < aging < 0.7 * good


def test_a_table_of_one_seed():
    table = try_design(Design())
    assert [row[0] for row in table.rows] == [FIRST, AGING, GOOD, "yours"]
    assert table.rows[0][1:] == table.rows[3][1:]
