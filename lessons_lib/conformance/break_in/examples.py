"""Tests that find all twelve mutants, and let the right engine pass."""

import json
from collections.abc import Callable
from typing import Any

from lessons_lib.engine.sampling_params import SamplingParams


def break_in_tests() -> list[Callable[[Any], None]]:
    """Your tests. Each is a function `test(make_engine)` that raises if the engine is wrong, best with `assert`.

    `make_engine(**limits)` returns a new engine: `make_engine(max_num_seqs=2, num_blocks=9)`. It has the methods of the
    contract, and `events(request_id, prompt_ids, params)`. `params` are SamplingParams.
    """
    short, other = [7, 3, 5, 9, 11, 2, 8, 4], [9, 1, 6, 2]

    def run_out(engine: Any) -> tuple[dict[str, list[int]], dict[str, str]]:
        """Step until all have ended: id -> tokens, id -> text."""
        tokens: dict[str, list[int]] = {}
        texts: dict[str, str] = {}
        while engine.has_unfinished():
            for event in engine.step():
                tokens.setdefault(event.request_id, []).extend(event.token_ids)
                texts[event.request_id] = texts.get(event.request_id, "") + event.text
        return tokens, texts

    def exactly(count: int, **more: Any) -> SamplingParams:
        return SamplingParams(max_tokens=count, ignore_eos=True, **{"temperature": 0, **more})

    def alone(make_engine: Any, prompt: list[int], params: SamplingParams) -> tuple[list[int], str]:
        engine = make_engine()
        engine.add_request("a", prompt, params)
        tokens, texts = run_out(engine)
        return tokens["a"], texts["a"]

    def test_length(make_engine: Any) -> None:
        assert len(alone(make_engine, short, exactly(5))[0]) == 5

    def test_seed_in_company(make_engine: Any) -> None:
        params = exactly(6, temperature=4.0, seed=41)
        engine = make_engine()
        engine.add_request("first", other, exactly(8))
        engine.add_request("a", short, params)
        assert run_out(engine)[0]["a"] == alone(make_engine, short, params)[0]

    def test_stop_string(make_engine: Any) -> None:
        _, text = alone(make_engine, short, exactly(12))
        stop = text[3:6]
        assert alone(make_engine, short, exactly(12, stop=[stop]))[1] == text[: text.index(stop)]

    def test_pieces_are_the_text(make_engine: Any) -> None:
        for seed in range(2):
            tokens, text = alone(make_engine, short, exactly(24, temperature=4.0, seed=seed))
            assert text == make_engine().text_of(tokens)

    def test_refusal(make_engine: Any) -> None:
        engine = make_engine()
        try:
            engine.add_request("a", [5, 1000], exactly(4))
            raise AssertionError("token 1000 was taken")
        except ValueError:
            assert not engine.has_unfinished()

    def test_abort(make_engine: Any) -> None:
        engine = make_engine(max_num_seqs=2)
        engine.add_request("a", short, exactly(9))
        engine.step()
        engine.abort("a")
        assert engine.num_free_blocks() == 128
        for name in "bc":
            engine.add_request(name, other, exactly(9))
        assert {event.request_id for event in engine.step()} == {"b", "c"}

    def test_disconnect(make_engine: Any) -> None:
        engine = make_engine()
        events = engine.events("a", short, exactly(9))
        next(events)
        events.close()
        assert not engine.has_unfinished() and engine.num_free_blocks() == 128

    def test_one_end(make_engine: Any) -> None:
        data = [event[6:].strip() for event in make_engine().events("a", short, exactly(4))]
        assert data[-1] == b"[DONE]"
        reasons = [json.loads(each)["choices"][0]["finish_reason"] for each in data[:-1]]
        assert [reason for reason in reasons if reason] == ["length"]

    def test_pressure(make_engine: Any) -> None:
        engine = make_engine(num_blocks=6)
        prompts = {"a": short, "b": [*other, *short[2:6]]}
        for name, prompt in prompts.items():
            engine.add_request(name, prompt, exactly(12))
        tokens = run_out(engine)[0]
        assert tokens == {name: alone(make_engine, prompt, exactly(12))[0] for name, prompt in prompts.items()}
        assert engine.num_free_blocks() == 6

    def test_same_block_behind_another(make_engine: Any) -> None:
        engine = make_engine()
        for name, prompt in (("a", [*short, *other, 1]), ("b", [*other, *short[4:], *other, 1])):
            engine.add_request(name, prompt, exactly(6))
            tokens = run_out(engine)[0]
            assert tokens[name] == alone(make_engine, prompt, exactly(6))[0]

    def test_abort_of_a_sharer(make_engine: Any) -> None:
        prompt = short * 2 + [1]
        engine = make_engine(num_blocks=16)
        for name in "ab":
            engine.add_request(name, prompt, exactly(12))
            engine.step()
        engine.abort("a")
        for name in "cd":
            engine.add_request(name, [ord(name) % 97] * 12, exactly(6))
        assert run_out(engine)[0]["b"] == alone(make_engine, prompt, exactly(12))[0][1:]
        assert engine.num_free_blocks() == 16

    return [
        test_length, test_seed_in_company, test_stop_string, test_pieces_are_the_text, test_refusal, test_abort,
        test_disconnect, test_one_end, test_pressure, test_same_block_behind_another, test_abort_of_a_sharer,
    ]  # fmt: skip
