"""What can be seen of the loop of 02.2: its passes, in words, and the answers."""

from collections import deque
from random import Random
from typing import Any, NamedTuple

from lessons_lib.batching.continuous_batching import SlotBatch
from lessons_lib.batching.request import Request
from lessons_lib.batching.slot_cache import SlotCache
from lessons_lib.checks.diagnosis import Watch
from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.models.tiny_models import tiny_model

Asked = tuple[str, int, int]  # a request's name, the length of its prompt, its limit
DECODE = "a token for "


class Case(NamedTuple):
    num_slots: int
    prefill_step: int
    asked: list[Asked]
    end: int | None = None
    late: tuple[tuple[int, Asked], ...] = ()  # the pass in which a further request arrives


def run(attempt: Any, case: Case, watch: Watch) -> None:
    passes = Passes(case, watch.wanted[0].seen["the passes"] if watch.wanted else None)

    def serve(batch: SlotBatch) -> None:
        attempt(batch)
        passes.refuse_places()
        passes.refuse_state()

    watch("`serve(batch)`", serve, passes.batch, look=passes.look)


class Passes:
    """The passes of an answer. Refuses the first one that can't be right, or isn't the reference's.

    No model computes them: the next token is a function of the row's tokens up to the last new one.

    Attributes:
        due: id of a request -> the tokens that the passes so far gave it.
        computed: id of a request -> how many tokens of its prompt are computed.
        told: the passes so far, in words. Which slots they use, and the dummy tokens, are free.
    """

    def __init__(self, case: Case, wanted: list[str] | None):
        self.case, self.wanted, self.rows = case, wanted, [[0] * 64 for _ in range(case.num_slots)]
        self.told: list[str] = []
        self.requests: list[Request] = []
        self.prompts, self.due, self.computed = {}, {}, {}
        model = tiny_model("qwen2")
        self.batch = SlotBatch(model, SlotCache(model, case.num_slots, 64), case.prefill_step, deque())
        self.batch.forward = self.forward  # type: ignore[method-assign]
        self.arrive(case.asked)

    def arrive(self, asked: list[Asked]) -> None:
        for id, length, limit in asked:
            draw = Random(id)
            request = Request(id, [draw.randrange(10, 100) for _ in range(length)], limit, self.case.end)
            self.prompts[id], self.due[id], self.computed[id] = request.prompt_ids[:], [], 0
            self.requests.append(request)
            self.batch.waiting.append(request)

    def forward(self, slots: range, tokens: list[list[int]], positions: list[list[int]]) -> list[int]:
        words, next_tokens = self.words(slots, tokens, positions), []
        if self.wanted is not None:
            want = self.wanted[len(self.told)] if len(self.told) < len(self.wanted) else ""
            if words != want:
                should = f"should be {want!r}" if want else "isn't needed"
                self.refuse(
                    f"pass {len(self.told) + 1} {should}; yours is {words!r}",
                    broken(words, want, self.told[-1] if self.told else ""),
                )
        self.told.append(words)
        self.arrive([asked for number, asked in self.case.late if number == len(self.told)])
        for slot, new, places in zip(slots, tokens, positions):
            for token, place in zip(new, places):
                self.rows[slot][place] = int(token)
            next_tokens.append(Random(repr(self.rows[slot][: places[-1] + 1])).randrange(10, 100))
            if request := self.batch.running.get(slot):
                if not words.startswith(DECODE):
                    self.computed[request.id] = places[-1] + 1
                if self.computed[request.id] == len(request.prompt_ids):
                    self.due[request.id].append(next_tokens[-1])
        return next_tokens

    def look(self) -> dict[str, Any]:
        return {
            "the passes": self.told,
            "batch.running": {slot: getattr(request, "id", request) for slot, request in self.batch.running.items()},
        }

    def refuse(self, what: str, idea: str) -> None:
        last = f"after pass {len(self.told)}, {self.told[-1]!r}, " if self.told else ""
        raise Mistake(f"{last}{what}.", idea=idea)

    def refuse_places(self) -> None:
        """A request waits or runs until it is done, and its prompt stays as it is."""
        held = [request.id for request in (*self.batch.waiting, *self.batch.running.values()) if request]
        for request in self.requests:
            if request.prompt_ids != self.prompts[request.id]:
                self.refuse(f"the `prompt_ids` of {request.id} have changed", "They are the user's: only read them.")
            count = held.count(request.id)
            if count > 1 or (count == 0 and not request.is_done):
                places = "twice in `batch.waiting` and" if count else "neither in `batch.waiting` nor in"
                self.refuse(
                    f"{request.id} is {places} `batch.running`",
                    "A request leaves the queue as it gets a slot that isn't in `batch.running` (the number of those "
                    "that run isn't a free slot), and keeps it until it `is_done`.",
                )

    def refuse_state(self) -> None:
        """Answers must be what the passes so far gave."""
        for request in self.requests:
            mine, due = request.output_ids, self.due[request.id]
            if mine != due:
                self.refuse(
                    f"the `output_ids` of {request.id} should be {due}; yours are {mine}",
                    "Only the chunk that ends a prompt gives the first token: no earlier chunk, and no dummy."
                    if not due
                    else "The chunk that ends a prompt gives the first token, however long that chunk is: append it."
                    if not mine
                    else "`forward` returns a list, with a token for each slot of the range in its order, not in that "
                    "of `batch.running`. After a decode, append `next_tokens[slot]` to each decoding request.",
                )

    def words(self, slots: range, tokens: list[list[int]], positions: list[list[int]]) -> str:
        """A pass in words: whose tokens it computes."""
        running, num_slots, now = self.batch.running, self.batch.num_slots, f"pass {len(self.told) + 1}"
        self.refuse_places()
        self.refuse_shape(slots, tokens, positions)
        rows = [(running.get(slot), list(row), list(places)) for slot, row, places in zip(slots, tokens, positions)]
        request, row, places = rows[0]
        ids = request.prompt_ids if request else []
        is_chunk = len(rows) == 1 and row == [ids[place] for place in places if place < len(ids)]
        if not is_chunk or (request and request.output_ids):
            self.refuse_state()
        if self.batch.waiting and len(running) < num_slots and not (is_chunk and self.told):
            self.refuse(
                f"{now} leaves a slot free while a request waits",
                "Fill *all* free slots at the beginning of each step. Requests that are done leave at its end, so that "
                "the next step can fill their slots.",
            )
        decoding = [(request, *new) for request, *new in rows if request and request.output_ids]
        if is_chunk and request:
            if places[0] != (start := self.computed[request.id]):
                self.refuse(
                    f"{now} computes {request.id}'s prompt from position {places[0]} instead of {start}",
                    "A chunk begins where the one before it ended. Count its tokens, and no dummy.",
                )
            return f"{request.id}'s prompt, {len(row)} token{'s' * (len(row) > 1)} from position {start}"
        if not decoding and request and len(rows) == 1:
            idea = f"`prompt_ids[p]` is at position p, and in slot {slots[0]} there is {request.id}."
            self.refuse(f"{now} computes tokens that aren't {request.id}'s at positions {places}", idea)
        if not decoding:
            self.refuse(f"{now} computes no request's token", "There is no decode pass if no request has a token.")
        for request, *new in decoding:
            due = [request.output_ids[-1:], [len(request.prompt_ids) + len(request.output_ids) - 1]]
            if new != due:
                self.refuse(
                    f"{now} feeds {request.id} tokens {new[0]} at positions {new[1]} instead of {due[0]} at {due[1]}",
                    "Feed each decoding request its newest token, at the first position that isn't computed yet: the "
                    "prompt's length plus the tokens of the answer, less one.",
                )
        if len(rows) < num_slots:
            self.refuse(
                f"{now} covers slots {list(slots)} of {num_slots}",
                "All decoding requests share one pass, and it covers all slots: `range(batch.num_slots)`.",
            )
        for request, _, [place] in rows:
            if request and not request.output_ids and place < self.computed[request.id]:
                self.refuse(
                    f"{now} puts a dummy at position {place} of {request.id}, over a token of its prompt",
                    "A row that is still prefilling takes part in the decode pass, too, and its dummy's key overwrites "
                    "what is at its position. Put it where the row's next token goes.",
                )
        return DECODE + ", ".join(sorted(request.id for request, *_ in decoding))

    def refuse_shape(self, slots: Any, tokens: Any, positions: Any) -> None:
        try:
            sizes = {len(row) for row in (*tokens, *positions)}
            fits = len(slots) == len(tokens) == len(positions) and len(sizes) == 1 and 0 not in sizes
            fits &= slots == range(slots[0], slots[0] + 1) or (slots == range(self.batch.num_slots) and sizes == {1})
            fits &= min(map(min, (*tokens, *positions))) >= 0 and max(map(max, positions)) < 64
        except (TypeError, ValueError, IndexError):
            fits = False
        if not fits:
            self.refuse_state()
            raise Mistake(
                f"`batch.forward` got slots {slots}, tokens {short(tokens)} and positions {short(positions)}.",
                idea="Each slot of the range needs a list of tokens and one of positions, equally long, not empty. For "
                "a decode the range is `range(batch.num_slots)`, with one token for each slot, also for those that "
                "don't decode; for a chunk it's `range(slot, slot + 1)`. Nothing is negative; a row has 64 columns.",
            )


def broken(got: str, want: str, before: str) -> str:
    """What a step must do and this pass doesn't."""
    if not want:
        return (
            "All answers are complete by then. The chunk that ends a prompt gives the first token, which may be the "
            "last, and a step decodes before it. Look at `is_done` of all requests at the end of the step."
        )
    if want.startswith(DECODE) and got.startswith(DECODE):
        return "Each request that has a token gets one in every step until it `is_done`: by its limit or the end token."
    if want.startswith(DECODE) and before.startswith(DECODE):
        return "Free slots are filled at the beginning of a step, not between its decode pass and its chunk."
    if want.startswith(DECODE):
        return "A step computes one chunk, of *one* prompt; the next begins with a decode pass, if any request decodes."
    if got.startswith(DECODE):
        return (
            "A step has one decode pass, then one chunk, as long as any prompt isn't done: chunks don't wait for "
            "decodes, and a request that gets its first token decodes from the next step on."
        )
    if got.partition("'")[0] != want.partition("'")[0]:
        return (
            "First come, first served: free slots go to the front of the queue, and the chunk is one of the request "
            "that was admitted first, of those whose prompts aren't done. A slot's number doesn't say which that is; "
            "`batch.running` keeps the order in which requests were put in."
        )
    return "A chunk has the next `batch.prefill_step` tokens of the prompt, or all that are left if they are fewer."


def tell(case: Case) -> str:
    def words(asked: Asked) -> str:
        return f"{asked[0]} ({asked[1]}-token prompt, limit {asked[2]})"

    end = "" if case.end is None else f", end token {case.end}"
    late = "".join(f"; during pass {number}, {words(asked)} arrives" for number, asked in case.late)
    slots = f"{case.num_slots} slot{'s' * (case.num_slots > 1)}"
    return f"{slots}, prefill_step {case.prefill_step}{end}; waiting: {', '.join(map(words, case.asked))}{late}."
