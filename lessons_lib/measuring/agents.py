"""A trace of agents: long shared prompts, many turns with pauses, and branches that are tried and dropped."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class Turn:
    """One request of an agent.

    Attributes:
        at: seconds from the start of the trace.
        agent: its number.
        branches_off: how many of its last turns the agent drops before this one, as if they hadn't been.
        text: token ids that this turn adds to the conversation.
        max_tokens: of the answer, which is part of the next prompt.
    """

    at: float
    agent: int
    branches_off: int
    text: tuple[int, ...]
    max_tokens: int


def agents_trace(
    num_agents: int = 12, turns: int = 6, num_tools: int = 3, shared: int = 160, vocab_size: int = 500, seed: int = 0
) -> list[Turn]:
    """Turns of several agents, in the order of time.

    An agent begins with the prompt of one of `num_tools` programs, of `shared` tokens, and a task of its own. Then come
    results of tools, each after a pause: mostly seconds, now and then minutes. One turn in six drops one or two before.
    """
    rng = random.Random(seed)

    def words(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(20, vocab_size) for _ in range(count))

    prompts = [words(shared) for _ in range(num_tools)]
    trace = []
    for agent in range(num_agents):
        at, depth = rng.uniform(0, 30), 0
        for turn in range(turns):
            dropped = rng.randint(1, min(2, depth - 1)) if depth > 1 and rng.random() < 1 / 6 else 0
            depth += 1 - dropped
            start = (*rng.choice(prompts), *words(rng.randint(20, 60))) if turn == 0 else words(rng.randint(8, 40))
            trace.append(Turn(at, agent, dropped, start, rng.randint(4, 16)))
            at += rng.expovariate(1 / 120) if rng.random() < 0.2 else rng.expovariate(1 / 8)
    return sorted(trace, key=lambda turn: turn.at)


def statistics_of(trace: list[Turn]) -> dict[str, float]:
    """Facts of a trace, by name."""
    last: dict[int, float] = {}
    pauses = []
    for turn in trace:
        if turn.agent in last:
            pauses.append(turn.at - last[turn.agent])
        last[turn.agent] = turn.at
    return {
        "agents": len(last), "turns": len(trace), "turns that branch off": sum(t.branches_off > 0 for t in trace),
        "median pause in s": median(pauses), "longest pause in s": max(pauses),
        "tokens added in a turn": median(len(turn.text) for turn in trace),
    }  # fmt: skip


@dataclass(frozen=True)
class TurnResult:
    """The result of a turn.

    Attributes:
        prompt_tokens, cached_tokens: of its prompt, and of these the ones that were found.
        seconds: to its first token.
        is_returning: the agent had a turn before.
    """

    prompt_tokens: int
    cached_tokens: int
    seconds: float
    is_returning: bool
    answer: list[int]


def play_agents(engine: LLMEngine, trace: list[Turn], clock: Callable[[], float]) -> list[TurnResult]:
    """Serve the turns one after the other. Pauses are left out: they only decide the order."""
    conversations: dict[int, list[list[int]]] = {}
    results = []
    for turn in trace:
        kept = conversations.setdefault(turn.agent, [])
        is_returning = bool(kept)
        del kept[len(kept) - turn.branches_off :]
        prompt = [*(kept[-1] if kept else []), *turn.text]
        begin, times = clock(), list[float]()
        params = SamplingParams(max_tokens=turn.max_tokens, ignore_eos=True)
        engine.add_request(prompt, params, on_token=lambda token, times=times: times.append(clock()))
        outputs = []
        while engine.has_unfinished():
            outputs += engine.step()
        (output,) = outputs
        kept.append([*prompt, *output.token_ids])
        seconds = times[0] - begin
        results.append(TurnResult(len(prompt), output.num_cached_tokens, seconds, is_returning, output.token_ids))
    return results


def summary(results: list[TurnResult]) -> dict[str, float]:
    """Tokens of all prompts, those that were computed, and the median seconds to the first token of returning turns."""
    return {
        "prompt tokens": sum(each.prompt_tokens for each in results),
        "computed": sum(each.prompt_tokens - each.cached_tokens for each in results),
        "median TTFT of returning turns": median(each.seconds for each in results if each.is_returning),
    }


def compare(make_engine: Callable[..., LLMEngine], trace: list[Turn], clock: Callable[[], float]) -> dict[str, float]:
    """Play a trace with and without floors.

    Args:
        make_engine: function (**options of EngineConfig) -> an engine whose pool is too small for all agents.

    Returns:
        the ratios, with floors / without: "computed" tokens of prompts, and "TTFT" of returning turns.

    Raises:
        ValueError: an answer differs.
    """
    with make_engine() as without:
        before = play_agents(without, trace, clock)
    with make_engine(host_cache_bytes=2**28) as floored:
        after = play_agents(floored, trace, clock)
    if [each.answer for each in before] != [each.answer for each in after]:
        raise ValueError("with floors, an answer is another one.")
    ratios = [new / old for new, old in zip(summary(after).values(), summary(before).values())]
    return {"computed": ratios[1], "TTFT": ratios[2]}
