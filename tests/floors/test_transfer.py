"""Blocks from one engine to another. Whatever happens on the way, the answers are right."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_cases import KINDS, a_model, check_that_nothing_is_left
from test_disk_floor import BLOCK, damage
from test_host_floor import PROMPTS, a_floored_engine, ask

from lessons_lib.floors.model_identity import identity_of
from lessons_lib.floors.transfer import FileTransfer, receive_prompt, send_prompt
from lessons_lib.models.validate import BadRequest
from tools.random_workloads import audit_floors


class LocalTransfer(dict):
    """A Transfer between engines of one process and one model."""

    def send(self, block_hash, depth, row):
        self[block_hash] = row.clone()

    def receive(self, block_hash, row):
        if sent := block_hash in self:
            row.copy_(self.pop(block_hash))
        return sent


def by_file(folder, engine, is_sender, records=50):
    identity = identity_of(engine.model, engine.runner.cache)
    return FileTransfer(Path(folder) / "blocks", identity, records, BLOCK, is_sender)


def both_ends(kind, folder, one, other):
    if kind == "local":
        return (LocalTransfer(),) * 2
    return by_file(folder, one, True), by_file(folder, other, False)


@pytest.mark.parametrize("way", ["local", "file"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_computed_by_one_engine_is_found_by_another(way, kind, tmp_path):
    one, other = a_floored_engine(kind=kind), a_floored_engine(kind=kind)
    there, here = both_ends(way, tmp_path, one, other)
    for prompt in PROMPTS:
        ask(one, prompt, max_tokens=1)
        assert send_prompt(one, prompt, there) == receive_prompt(other, prompt, here) == 5
        audit_floors(one.scheduler.pool)
    assert [ask(other, prompt) for prompt in PROMPTS] == [20, 20, 20]
    assert receive_prompt(other, PROMPTS[0], here) == 5  # it has them
    check_that_nothing_is_left(other)


def test_while_both_engines_serve_others():
    one, other = a_floored_engine(num_blocks=20), a_floored_engine(num_blocks=20)
    transfer = LocalTransfer()
    for engine in (one, other):
        engine.add_request(PROMPTS[1][:9], request_id="busy")
        engine.step()
    ask(one, PROMPTS[0], max_tokens=1)
    assert send_prompt(one, PROMPTS[0], transfer) == receive_prompt(other, PROMPTS[0], transfer) == 5
    assert ask(other, PROMPTS[0]) == 20


def test_a_salt_holds_on_the_way():
    one, other, transfer = a_floored_engine(), a_floored_engine(), LocalTransfer()
    ask(one, PROMPTS[0], salt="a")
    assert send_prompt(one, PROMPTS[0], transfer) == 0
    assert send_prompt(one, PROMPTS[0], transfer, cache_salt="a") == 5
    assert receive_prompt(other, PROMPTS[0], transfer, cache_salt="b") == 0
    assert receive_prompt(other, PROMPTS[0], transfer, cache_salt="a") == 5
    assert [ask(other, PROMPTS[0], salt=salt) for salt in ("b", None, "a")] == [0, 0, 20]


def test_what_is_lost_late_or_damaged_is_computed_again(tmp_path):
    rng, found = random.Random(0), []
    one = a_floored_engine()
    for prompt in PROMPTS:
        ask(one, prompt)
    for _ in range(8):
        (tmp_path / "blocks").unlink(missing_ok=True)
        there = by_file(tmp_path, one, True, records=rng.choice([3, 50]))
        other = a_floored_engine()
        here = by_file(tmp_path, other, False, there.segment.num_records)
        for prompt in PROMPTS:
            fate = rng.choice(["lost", "late", "damaged", "comes"])
            if fate == "late":
                receive_prompt(other, prompt, here)
            if fate != "lost":
                send_prompt(one, prompt, there)
            if fate == "damaged":
                damage(tmp_path / "blocks", rng)
            if fate != "late":
                receive_prompt(other, prompt, here)
            found.append(ask(other, prompt))
    assert 0 in found and 20 in found and set(found) & {4, 8, 12, 16}


def test_a_transfer_that_fails_disturbs_no_engine():
    one, other = a_floored_engine(), a_floored_engine()
    ask(one, PROMPTS[0])

    class Broken(LocalTransfer):
        def send(self, *what):
            if len(self) == 2:
                raise OSError("no space left")
            super().send(*what)

        def receive(self, block_hash, row):
            if len(self) == 1:
                row[:9] = 7
                raise ConnectionError("gone")
            return super().receive(block_hash, row)

    transfer = Broken()
    assert send_prompt(one, PROMPTS[0], transfer) == 2
    assert receive_prompt(other, PROMPTS[0], transfer) == 1
    assert ask(other, PROMPTS[0]) == 4 and ask(one, PROMPTS[0]) == 20


def test_blocks_of_another_model_are_refused(tmp_path):
    one, other = a_floored_engine(), a_floored_engine(model=a_model("llama"))
    by_file(tmp_path, one, True)
    with pytest.raises(BadRequest, match="the header is .*; it must be that of the reader's blocks"):
        by_file(tmp_path, other, False)


SENDER = """
import sys
sys.path[:0] = ["tests/floors", "tests/support"]
from test_transfer import *
engine = a_floored_engine()
transfer = by_file(sys.argv[1], engine, True)
for prompt in PROMPTS:
    ask(engine, prompt, max_tokens=1)
    print(send_prompt(engine, prompt, transfer), flush=True)
sys.stdin.read()
"""


@pytest.mark.nightly
def test_from_process_to_process(tmp_path):
    command = [sys.executable, "-c", SENDER, tmp_path]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as sender:
        engine = a_floored_engine()
        assert [sender.stdout.readline() for _ in PROMPTS] == [b"5\n"] * 3
        transfer = by_file(tmp_path, engine, False)
        assert [receive_prompt(engine, prompt, transfer) for prompt in PROMPTS] == [5, 5, 5]
        assert [ask(engine, prompt) for prompt in PROMPTS] == [20, 20, 20]
        sender.stdin.close()


def test_a_transfer_inside_a_step_is_refused():
    engine, transfer = a_floored_engine(), LocalTransfer()
    engine.core.observers.append(lambda step, requests: send_prompt(engine, PROMPTS[0], transfer))
    with pytest.raises(RuntimeError, match="called inside a step"):
        ask(engine, PROMPTS[0])
    engine.core.observers.pop()
    engine.step()
    assert torch.is_tensor(engine.runner.cache.keys[0]) and ask(engine, PROMPTS[1]) == 0
