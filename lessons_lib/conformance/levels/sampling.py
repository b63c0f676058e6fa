"""Draws: the right distribution, and seeds that keep their promise; and the texts of what was drawn."""

from typing import Any

import torch

from lessons_lib.conformance.contract import SAMPLING, TEXT
from lessons_lib.conformance.driver import Run
from lessons_lib.conformance.items import Level
from lessons_lib.conformance.oracle import END, a_prompt, expected, next_token_probabilities
from lessons_lib.conformance.served import Broken

LEVEL = Level("sampling", "Draws, seeds and texts")
PROMPT = a_prompt(9)
FLAT = 4.0  # a temperature at which the tiny models' distributions are wide


def _drawn(run: Run, company: bool = False, **params: Any) -> list[int]:
    if company:
        for index in range(3):
            run.add(a_prompt(4 + index, index), 12, temperature=FLAT, seed=index, ignore_eos=True)
        run.step()
    name = run.add(PROMPT, 10, ignore_eos=True, **params)
    run.run_out()
    return run.requests[name].tokens


def _is_greedy(run: Run, what: str, **params: Any) -> None:
    tokens = _drawn(run, **params)
    right = expected("qwen2", PROMPT, 10, ignore_eos=True)
    if tokens != right:
        raise Broken(f"{what} leaves one token to draw, the likeliest: {right}; the engine drew {tokens}.")


@LEVEL.item("top_k = 1 is greedy at any temperature", "12", SAMPLING)
def top_k_of_one(run: Run) -> None:
    _is_greedy(run, "top_k 1 at temperature 4", temperature=FLAT, top_k=1, seed=3)


@LEVEL.item("A tiny top_p is greedy at any temperature", "12", SAMPLING)
def tiny_top_p(run: Run) -> None:
    _is_greedy(run, "top_p 1e-6 at temperature 4", temperature=FLAT, top_p=1e-6, seed=3)


@LEVEL.item("Temperature 0 ignores the other parameters", "12", SAMPLING)
def temperature_zero(run: Run) -> None:
    _is_greedy(run, "temperature 0", temperature=0.0, top_k=50, top_p=0.9, seed=3)


@LEVEL.item("A seed draws the same answer again, alone or in company", "12", SAMPLING)
def seeds_in_company(run: Run) -> None:
    params: dict[str, Any] = dict(temperature=FLAT, seed=41)
    alone = _drawn(run, **params)
    for company in (False, True):
        again = _drawn(run, company, **params)
        how = "beside three others" if company else "the second time"
        if again != alone:
            raise Broken(
                f"seed 41 drew {alone} alone, and {again} {how}. Draw with numbers of the request's own: of its "
                "seed and the position of the token."
            )


@LEVEL.item("A seed draws the same answer after a preemption", "12", SAMPLING)
def seeds_under_pressure(run: Run) -> None:
    alone: dict[str, list[int]] = {}
    for num_blocks in (64, 9):
        run = run.another(num_blocks=num_blocks, max_num_seqs=3)
        names = [run.add(a_prompt(8, s), 24, temperature=FLAT, seed=s, ignore_eos=True) for s in range(3)]
        run.run_out()
        for name in names:
            tokens = run.requests[name].tokens
            if alone.setdefault(name, tokens) != tokens:
                raise Broken(
                    f"a pool of 9 blocks preempts: the seed's answer was {alone[name]} before and is {tokens} now. "
                    "After a preemption the next token is drawn with the number of its position."
                )


@LEVEL.item("Different seeds draw different answers, and no seed another one each time", "12", SAMPLING)
def seeds_differ(run: Run) -> None:
    seeded = {tuple(_drawn(run, temperature=FLAT, seed=seed)) for seed in range(4)}
    unseeded = {tuple(_drawn(run, temperature=FLAT)) for _ in range(4)}
    for what, answers in (("four seeds", seeded), ("four requests without a seed", unseeded)):
        if len(answers) < 4:
            raise Broken(f"{what} drew {len(answers)} different answers of ten tokens at temperature {FLAT:g}.")


def _first_tokens(run: Run, count: int, **params: Any) -> torch.Tensor:
    """[vocabulary]: how often each token is the first one drawn."""
    run = run.another(max_num_seqs=16)
    names = [run.add(PROMPT, 1, seed=seed, ignore_eos=True, **params) for seed in range(count)]
    run.run_out()
    drawn = torch.tensor([run.requests[name].tokens[0] for name in names])
    return torch.bincount(drawn, minlength=97).double()


def _check_draws(run: Run, what: str, right: torch.Tensor, **params: Any) -> None:
    """Chi-square over the tokens that are expected at least five times; the others are one class."""
    count = 600
    seen = _first_tokens(run, count, **params)
    if (outside := int(seen[right == 0].sum())) > 0:
        token = int((seen * (right == 0)).argmax())
        raise Broken(f"{what}: {outside} of {count} draws took a token that may not be drawn, such as {token}.")
    often = right * count >= 5
    classes = torch.cat([right[often], right[~often].sum()[None]]) * count
    counted = torch.cat([seen[often], seen[~often].sum()[None]])
    used = classes > 1
    square = float(((counted - classes)[used] ** 2 / classes[used]).sum())
    freedom = int(used.sum()) - 1
    limit = freedom + 6 * (2 * max(freedom, 1)) ** 0.5  # six standard deviations
    if square > limit:
        raise Broken(
            f"{what}: chi-square of {count} first tokens is {square:.0f}, with {freedom} degrees of freedom; a "
            f"right draw stays below {limit:.0f}. The probabilities are not those of the softmax."
        )


def _probabilities(temperature: float) -> torch.Tensor:
    logits = next_token_probabilities("qwen2", tuple(PROMPT)).log() / temperature
    return logits.softmax(-1)


@LEVEL.item("Draws follow the softmax at the temperature", "12", SAMPLING)
def distribution(run: Run) -> None:
    _check_draws(run, "temperature 4", _probabilities(FLAT), temperature=FLAT)


@LEVEL.item("top_k draws from the k likeliest", "12", SAMPLING)
def top_k(run: Run) -> None:
    right = _probabilities(FLAT)
    right[right < right.topk(5).values[-1]] = 0
    _check_draws(run, "top_k 5 at temperature 4", right / right.sum(), temperature=FLAT, top_k=5)


@LEVEL.item("top_p draws from the likeliest that together have this probability", "12", SAMPLING)
def top_p(run: Run) -> None:
    right, order = _probabilities(FLAT).sort(descending=True)
    right[right.cumsum(-1) - right >= 0.6] = 0
    right = torch.zeros(97, dtype=torch.double).scatter(0, order, right)
    _check_draws(run, "top_p 0.6 at temperature 4", right / right.sum(), temperature=FLAT, top_p=0.6)


@LEVEL.item("A temperature or top_p that makes no sense is refused", "12", SAMPLING)
def senseless_params(run: Run) -> None:
    nan, infinite = float("nan"), float("inf")
    wrong = {"temperature": (-1.0, nan, infinite), "top_p": (0.0, -0.5, 1.5, 2.0, nan)}
    for name, value in [(name, value) for name, values in wrong.items() for value in values]:
        run.must_refuse(f"a request with {name} {value}", PROMPT, {name: value})
    run.add(PROMPT, 4, name="wrong")  # the id is free
    run.finish()


@LEVEL.item("The pieces of a stream are the text of its tokens, and no piece ends in half a character", "12", TEXT)
def texts(run: Run) -> None:
    names = [run.add(a_prompt(5, s), 30, temperature=FLAT, seed=s) for s in range(8)]
    names.append(run.add(PROMPT, 10, ignore_eos=True))
    pieces: dict[str, list[str]] = {name: [] for name in names}
    while run.engine.has_unfinished():
        for event in run.step():
            pieces[event.request_id].append(event.text)
    for name in names:
        tokens, text = run.requests[name].tokens, "".join(pieces[name])
        right = run.tokenizer.decode(tokens)
        without_end = run.tokenizer.decode(tokens[:-1] if tokens[-1] == END else tokens)
        if text not in (right, without_end):
            raise Broken(
                f"the pieces of request {name!r} are {text!r}; the text of its tokens is {right!r}. A character may "
                "need several tokens: show it when the last has come."
            )
