"""What can be seen of the loop of 02.2: its passes, in words, and the answers."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from lessons_lib.batching.continuous_batching import SlotBatch
from lessons_lib.batching.request import Request
from lessons_lib.batching.slot_cache import SlotCache
from lessons_lib.checks.diagnosis import Watch
from lessons_lib.checks.diagnosis.own_passes import own_passes
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

Asked = tuple[str, int, int]  # a request's name, the length of its prompt, its limit


class Case(NamedTuple):
    num_slots: int
    prefill_step: int
    asked: list[Asked]
    end: int | None = None
    late: tuple[tuple[int, Asked], ...] = ()  # the pass in which a further request arrives


DECODE, NONE = "a token for ", "no request's token"
FREE = ", while a slot is free and a request waits"


def run(attempt: Any, case: Case, watch: Watch) -> None:
    model = tiny_model("qwen2")
    late = [(number, request_of(asked, case)) for number, asked in case.late]
    requests = [request_of(asked, case) for asked in case.asked]
    batch = SlotBatch(model, SlotCache(model, case.num_slots, 64), case.prefill_step, deque(requests))
    compute, passes = remembered(batch, case), []
    wanted = watch.wanted[0].seen["the passes"] if watch.wanted else None
    all_requests = [*requests, *(request for _, request in late)]
    prompts = {request.id: request.prompt_ids[:] for request in all_requests}

    def forward(slots: range, tokens: list[list[int]], positions: list[list[int]]) -> list[int]:
        refuse_odd(batch, slots, tokens, positions)
        for request in all_requests:
            if request.prompt_ids != prompts[request.id]:
                raise Mistake(
                    f"the `prompt_ids` of {request.id} have changed.", idea="They are the user's: only read them."
                )
        free = len(batch.running) < batch.num_slots and batch.waiting
        words = told(batch, slots, tokens, positions)
        is_filled = not free or (passes and not words.startswith(DECODE))
        passes.append(words if is_filled else words + FREE)
        if wanted is not None and passes != wanted[: len(passes)]:
            refuse_pass(passes, wanted)
        batch.waiting.extend(request for number, request in late if number == len(passes))
        return compute(slots, in_vocabulary(tokens), positions)

    batch.forward = forward  # type: ignore[method-assign]

    def look() -> dict[str, Any]:
        return {
            "the prompts": {request.id: request.prompt_ids for request in all_requests},
            "the passes": passes,
            "the answers": {request.id: [int(token) for token in request.output_ids] for request in all_requests},
            "batch.running": {slot: getattr(request, "id", request) for slot, request in batch.running.items()},
            "batch.waiting": [request.id for request in batch.waiting],
        }

    with own_passes(model):
        watch("`serve(batch)`", attempt, batch, look=look, returns=lambda got: None)


def refuse_odd(batch: SlotBatch, slots: Any, tokens: Any, positions: Any) -> None:
    got = f"`batch.forward` got slots {slots}, tokens {short(tokens)} and positions {short(positions)}."
    try:
        sizes = {len(row) for row in (*tokens, *positions)}
        is_rectangle = len(slots) == len(tokens) == len(positions) and len(sizes) == 1 and 0 not in sizes
    except TypeError:
        is_rectangle = False
    if not is_rectangle or slots not in (range(batch.num_slots), range(slots[0], slots[0] + 1)):
        raise Mistake(
            got,
            idea="Each slot of the range needs a list of tokens and one of positions, equally long, not empty. For a "
            "decode it's `range(batch.num_slots)`, with one token for each slot, also for those that don't decode; for "
            "a chunk `range(slot, slot + 1)`, with one list of tokens and one of positions.",
        )
    if min(map(min, (*tokens, *positions))) < 0 or max(map(max, positions)) >= batch.cache.max_seq_len:
        idea = f"Nothing is negative, and a row has columns 0 to {batch.cache.max_seq_len - 1}. An empty slot takes 0."
        raise Mistake(got, idea=idea)


def refuse_pass(passes: list[str], wanted: list[str]) -> None:
    """The first pass that isn't the reference's, and what it breaks."""
    got, want = passes[-1], wanted[len(passes) - 1] if len(passes) <= len(wanted) else ""
    before = f", after {passes[-2]!r}," if passes[1:] else ""
    should = f"should be {want!r}" if want else "isn't needed"
    raise Mistake(f"pass {len(passes)}{before} {should}; yours is {got!r}.", idea=broken(got, want))


def broken(got: str, want: str) -> str:
    """What a step must do and this pass doesn't."""
    mine, due = got.partition("'s prompt")[0], want.partition("'s prompt")[0]
    if got.endswith(FREE):
        return (
            "Fill *all* free slots at the beginning of each step. Requests that are done leave at its end, so that the "
            "next step can fill their slots."
        )
    if got.startswith(NONE):
        return (
            "The chunk that ends a prompt gives the first token; before it, a request doesn't decode, and there is no "
            "pass if none decodes. Requests are looked up in `batch.running`, under their slots."
        )
    if not want:
        return (
            "All answers are complete by then. The chunk that ends a prompt gives the first token, which may be the "
            "last, and a step decodes before it. Look at `is_done` of all requests at the end of the step."
        )
    if want.startswith(DECODE) and got.startswith(DECODE):
        if "instead" in got:
            return (
                "Feed each decoding request its newest token, at the first position that isn't computed yet: the "
                "prompt's length plus the tokens of the answer, less one."
            )
        if ", in slots" in got:
            return "All decoding requests share one pass, and it covers all slots: `range(batch.num_slots)`."
        return (
            "Each request that has a token and isn't done gets one in every step. `is_done` asks for the limit and for "
            "the end token."
        )
    if want.startswith(DECODE):
        return (
            "A step fills the free slots, decodes, and then computes one chunk, of *one* prompt. Each request that has "
            "a token and isn't done decodes in every step. A slot that becomes free is filled in the next one."
        )
    if got.startswith(DECODE) and due in got.removeprefix(DECODE):
        return f"Only the chunk that ends {due}'s prompt gives it its first token: no earlier chunk, and no dummy."
    if got.startswith(DECODE):
        return (
            "A step has one decode pass, then one chunk, as long as any prompt isn't done: chunks don't wait for "
            "decodes, and a request that gets its first token decodes from the next step on."
        )
    if mine != due:
        return (
            "First come, first served: free slots go to the front of the queue, and the chunk is one of the request "
            "that was admitted first, of those whose prompts aren't done. A slot's number doesn't say which that is; "
            "`batch.running` keeps the order in which requests were put in."
        )
    return (
        "A chunk has the next `batch.prefill_step` tokens of the prompt, or all that are left if they are fewer. "
        "Positions count from the beginning of the sequence."
    )


def in_vocabulary(tokens: Any) -> Any:
    """Dummy tokens may be any of the real model's; the vocabulary of this one is small."""
    return [[token % VOCAB_SIZE for token in row] for row in tokens]


KNOWN: dict[tuple[str, ...], list[int]] = {}  # the case and all passes so far -> what the last one returned


def remembered(batch: SlotBatch, case: Case) -> Callable[[range, list[list[int]], list[list[int]]], list[int]]:
    """`batch.forward`, which computes nothing that the same passes have computed before: many answers begin alike."""
    compute, history, due = batch.forward, [repr(case)], []

    def forward(*inputs: Any) -> list[int]:
        history.append(repr(inputs))
        due.append(inputs)
        if tuple(history) not in KNOWN:
            while due:
                result = compute(*due.pop(0))
            KNOWN[tuple(history)] = result
        return KNOWN[tuple(history)][:]

    return forward


def request_of(asked: Asked, case: Case) -> Request:
    name, length, limit = asked
    draw = Random(ord(name))
    return Request(name, [draw.randrange(VOCAB_SIZE) for _ in range(length)], limit, case.end)


def told(batch: SlotBatch, slots: range, tokens: list[list[int]], positions: list[list[int]]) -> str:
    """A pass in words: whose tokens it computes. Which slots it uses, and its dummy tokens, are free."""
    rows = [(batch.running.get(slot), *row) for slot, *row in zip(slots, tokens, positions)]
    decoding = [(request, *row) for request, *row in rows if request and request.output_ids]
    if decoding:
        words = DECODE + ", ".join(sorted(request.id + fed(request, *row) for request, *row in decoding))
        return words if len(rows) == batch.num_slots else f"{words}, in slots {list(slots)} of {batch.num_slots}"
    request, chunk, places = rows[0]
    if len(rows) != 1 or not request:
        return f"{NONE}: `batch.running` has none that decodes in slots {list(slots)}"
    is_its = list(chunk) == [request.prompt_ids[place] for place in places if place < len(request.prompt_ids)]
    what = "tokens" if is_its else "other tokens than those"
    return f"{request.id}'s prompt, {len(chunk)} {what} from position {places[0]}"


def fed(request: Request, tokens: list[int], positions: list[int]) -> str:
    """What is wrong with the input of a decoding request, in words; "" if nothing is."""
    place = len(request.prompt_ids) + len(request.output_ids) - 1
    if list(tokens) != request.output_ids[-1:]:
        return f" after {tokens} instead of its newest, {request.output_ids[-1:]}"
    return "" if list(positions) == [place] else f" at position {positions} instead of {[place]}"


def tell(case: Case) -> str:
    def words(asked: Asked) -> str:
        return f"{asked[0]} ({asked[1]} prompt tokens, limit {asked[2]})"

    end = "" if case.end is None else f", end token {case.end}"
    late = "".join(f"; during pass {number}, {words(asked)} arrives" for number, asked in case.late)
    slots = f"{case.num_slots} slot{'s' * (case.num_slots > 1)}"
    return f"{slots}, prefill_step {case.prefill_step}{end}; {', '.join(map(words, case.asked))} wait{late}."
