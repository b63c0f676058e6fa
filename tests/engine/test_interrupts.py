"""Interrupts at lines of the engine's code; `python -m tools.interrupts` tries all of them."""

import inspect

import pytest
from engine_cases import alone, an_engine, check_that_nothing_is_left, greedy, run_out

from lessons_lib.engine import llm_engine
from lessons_lib.engine.core import EngineCore
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.request import Request
from tools.interrupts import DEPTHS, ERRORS, Interrupter, Run, moments, sweep


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_an_interrupt_at_any_line_loses_nothing(depth, error, capsys):
    happened = sweep(depth, error, moments(depth, 2)[ERRORS.index(error) * 23 :: 131])
    assert happened["interrupts"] > 8 and not happened["broken"], capsys.readouterr().out


@pytest.mark.parametrize("again", [(3,), (40,), (160, 10)])
@pytest.mark.parametrize("depth", DEPTHS)
def test_an_interrupt_of_the_recovery_loses_nothing(depth, again, capsys):
    happened = sweep(depth, KeyboardInterrupt, moments(depth, 1)[len(again) :: 101], again)
    assert happened["interrupts"] > 5 and not happened["broken"], capsys.readouterr().out


def test_an_interrupt_before_a_request_is_added_leaves_nothing(monkeypatch):
    def interrupted(group):
        raise KeyboardInterrupt

    engine = an_engine()
    monkeypatch.setattr(engine.core, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.add_request([1, 2, 3], greedy(4), on_token=print)
    assert not engine.has_unfinished()


def test_the_workload_has_everything_in_it():
    run = Run(0, Interrupter())
    run.play()
    engine = run.engine
    assert engine.scheduler.num_preempted and engine.scheduler.num_swapped
    assert any(output.num_cached_tokens for output in run.outputs.values())
    reasons = {name: output.finish_reason for name, output in run.outputs.items()}
    assert reasons["aborted"] == reasons["ended"] == "abort" and reasons["stopped"] == "stop"
    files = {file.rsplit("/", 1)[1] for file, _ in run.interrupter.executed}
    assert {"core.py", "request.py", "preemption.py", "prefix_cache.py", "block_copies.py", "hf_backend.py"} <= files


@pytest.mark.parametrize(
    "owner, name, worse",
    [
        (EngineCore, "rebuild", lambda core: None),
        (Request, "restart", lambda request, tokenizer: None),  # sequences keep their blocks
    ],
)
def test_the_sweep_finds_a_recovery_that_fails(monkeypatch, owner, name, worse):
    told, chosen = [], moments(0, 1)
    monkeypatch.setattr(owner, name, worse)
    for at in chosen[::20]:
        if sweep(0, KeyboardInterrupt, [at], show=told.append)["broken"]:
            return
    raise AssertionError("nothing was found")


def executed_lines():
    """A function of its own, as `sweep` is: the engine looks at each frame of the call stack."""
    interrupter = Interrupter()
    Run(0, interrupter).play()
    return interrupter.executed


def test_an_interrupt_right_after_a_callback_fails_its_request(capsys):
    """Whether the callback was called with the token can't be known then."""
    lines, first = inspect.getsourcelines(LLMEngine._call_back)
    (line,) = (first + index for index, line in enumerate(lines) if "move_on(" in line)
    here = (llm_engine.__file__, line)
    chosen = [at for at, other in enumerate(executed_lines()) if other == here]
    happened = sweep(0, KeyboardInterrupt, chosen[::4])
    assert not happened["broken"], capsys.readouterr().out
    assert happened["failed requests"] > happened["interrupts"] / 2 > 2  # the others had aborted themselves


def test_an_interrupted_generate_leaves_no_request(monkeypatch):
    engine = an_engine()
    for at in range(0, 2000, 190):
        interrupter = Interrupter(at)
        with pytest.raises(KeyboardInterrupt), interrupter:
            engine.generate([[1, 2, 3], [4, 5]], greedy(6, ignore_eos=True))
        engine.core.settle()
        assert not run_out(engine), interrupter.where
        check_that_nothing_is_left(engine)
    (output,) = engine.generate([[1, 2]], greedy())
    assert output.token_ids == alone("qwen2", [1, 2], 12)


def test_a_model_whose_pass_was_interrupted_can_be_used_elsewhere():
    engine = an_engine()
    engine.add_request([1, 2, 3], greedy(3))
    before = engine.model.config._attn_implementation
    for at in range(0, 900, 10):
        try:
            with Interrupter(at):
                engine.step()
        except KeyboardInterrupt:
            engine.core.settle()
        assert engine.model.config._attn_implementation == before
