"""The engine room's engine: the course's scheduler, pool and prefix cache, driven a step at a time from outside.

The model's pass comes between `plan` and `done`: in a browser JavaScript computes it, in `recording` PyTorch. What goes
in and out is JSON. Times are those of a simulated machine, so a run depends on its settings alone.
"""

import json
import linecache
import random
import traceback

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling import policies, preemption, sequence
from lessons_lib.scheduling.scheduler import conservative, optimistic
from lessons_lib.scheduling.stalling import Scheduler
from lessons_lib.scheduling.swapping import SwappingScheduler

STEP_MS, TOKEN_MS = 20, 1  # a step of the simulated machine takes 20 ms, and 1 ms for each token
MOST_WAITING = 40  # then requests are turned away
MOST_TOKENS = 256  # that the page computes in a step
DEFAULTS = dict(
    rate=6, prompts="mixed", answer=40, temperature=0.8, seed=13, size=4, blocks=48, budget=32, slots=8, policy="fcfs",
    admission="optimistic", sharing=1, victims="recompute",
)  # fmt: skip
POLICIES = {
    "fcfs": sequence.FirstComeFirstServed,
    "shortest": policies.ShortestJobFirst,
    "ageing": lambda: policies.PriorityWithAging(patience=1000.0, head_start=500.0),
    "balanced": lambda: policies.BalancedLengths(target=60.0),
}
# The share of each kind among the prompts that arrive.
MIXTURES = {"short": {"short": 1}, "mixed": {"short": 0.85, "long": 0.15}, "long": {"long": 1}, "system": {"system": 1}}
OWN = {"schedule": "<your scheduler>", "rank": "<your policy>"}


class Room:
    """A run of the engine.

    Args:
        settings: as DEFAULTS, and optionally "schedule" and "rank", the reader's own code.
        prompts: kind -> token ids of each prompt; the kinds are those of MIXTURES.
    """

    def __init__(self, settings: dict, prompts: dict[str, list[list[int]]]):
        self.settings, self.prompts = settings, prompts
        self.random = random.Random(settings["seed"])
        self.clock = self.steps = self.turned_away = 0
        self.numbers: dict[str, int] = {}  # of the requests, from 0 on
        self.next_arrival = 0.0 if settings["rate"] else float("inf")
        self.sent: list[tuple[int, list[int], int]] = []  # (step, prompt, most new tokens) of the reader's requests
        pool = PrefixCache(settings["blocks"], settings["size"])
        limits = dict(max_num_seqs=settings["slots"], max_num_batched_tokens=settings["budget"], watermark=1)
        limits["admission"] = {"optimistic": optimistic, "conservative": conservative}[settings["admission"]]
        limits["policy"] = POLICIES[settings["policy"]]()
        self.is_own = bool(settings.get("schedule") or settings.get("rank"))
        if settings.get("rank"):
            limits["policy"] = own(settings["rank"], OWN["rank"], sequence.FirstComeFirstServed)()
        if settings["victims"] == "stall":
            self.scheduler = Scheduler(pool, **limits)
        else:
            kind = SwappingScheduler
            if settings.get("schedule"):
                kind = own(settings["schedule"], OWN["schedule"], kind)
            swap_space = BlockPool(settings["blocks"] if settings["victims"] == "swap" else 0, settings["size"])
            self.scheduler = kind(pool, swap_space=swap_space, share_prefixes=bool(settings["sharing"]), **limits)

    def gap(self) -> float:
        """Milliseconds to the next arrival. All draws are alike whatever the settings: other knobs, same requests."""
        gap = self.random.expovariate(1)
        return 1000 * gap / self.settings["rate"] if self.settings["rate"] else float("inf")

    def arrive(self) -> None:
        """Add the requests that have arrived by now: at random, and those that the reader sent."""
        while self.next_arrival <= self.clock:
            kind, which, length = self.random.random(), self.random.random(), self.random.expovariate(1)
            for name, share in MIXTURES[self.settings["prompts"]].items():
                if kind < share:
                    break
                kind -= share
            ids = self.prompts[name][int(which * len(self.prompts[name]))]
            self.add(ids, 4 + min(int(length * self.settings["answer"]), 120), self.next_arrival)
            self.next_arrival += self.gap()
        for step, ids, most in self.sent:
            if step == self.steps:
                self.add(ids, most, self.clock)

    def add(self, ids: list[int], most: int, time: float) -> None:
        if len(self.scheduler.waiting) >= MOST_WAITING:
            self.turned_away += 1
            return
        tens, ones = divmod(made := len(self.numbers), 26)
        name = chr(64 + tens) * (tens > 0) + chr(65 + ones)  # A to Z, then AA
        self.numbers[name], tier, interactive = made, made * 7 % 3, made * 5 % 2 == 0
        wish = dict(arrival_time=time, tier=tier, is_interactive=interactive, stop_token_ids=frozenset([0]))
        self.arrived.append([name, ids, most, tier, round(time)])
        try:
            self.scheduler.add(sequence.Sequence(name, list(ids), most, **wish))
        except (RuntimeError, ValueError) as error:
            self.refused.append([name, str(error)])

    def plan(self) -> str:
        """Schedule a step. JSON: the packed rows with their block tables, and the block copies that come first."""
        return self.answer(self._plan)

    def done(self, tokens: list[int]) -> str:
        """Give the scheduler a new token for each row. JSON: all that a picture of the step needs."""
        return self.answer(self._done, tokens)

    def answer(self, function, *arguments) -> str:
        try:
            return json.dumps(function(*arguments))
        except Exception as error:  # the reader's code may raise anything
            return json.dumps({"error": told(error)})

    def _plan(self) -> dict:
        self.arrived, self.refused = [], []
        self.arrive()
        self.output = self.scheduler.schedule()
        self.held_back = self.why_next_waits()
        rows = []
        for each, count in self.output.num_scheduled_tokens.items():
            start, ids = each.num_computed_tokens, each.token_ids
            left, room = len(ids) - start, len(each.blocks) * self.settings["size"] - start
            if self.is_own and not 0 < count <= min(left, room):
                raise ValueError(
                    f"{count} tokens are scheduled for {each.id}; {left} of its tokens are not computed, and its "
                    f"{len(each.blocks)} blocks have room for {room} more."
                )
            row = dict(id=each.id, ids=ids[start : start + count], start=start, blocks=each.blocks)
            rows.append(row | dict(seed=self.settings["seed"] + self.numbers[each.id], position=len(each.output_ids)))
        if self.output.num_tokens > MOST_TOKENS:
            raise ValueError(f"{self.output.num_tokens} tokens in a step; the page computes at most {MOST_TOKENS}.")
        self.copies = [[copy.kind, copy.source, copy.target] for copy in self.output.block_copies]
        return {"rows": rows, "copies": self.copies}

    def why_next_waits(self) -> list:
        """The next waiting request, the first rule of `schedule` that holds it back, and the blocks needed and free."""
        scheduler, output = self.scheduler, self.output
        if not scheduler.waiting:
            return []
        first = scheduler.waiting.next(scheduler.running)
        rules = {
            "preempted": output.preempted, "stalled": output.stalled,
            "slots": len(scheduler.running) >= scheduler.max_num_seqs,
            "budget": output.num_tokens >= scheduler.max_num_batched_tokens,
            "admission": not scheduler.admission(scheduler, first),
        }  # fmt: skip
        rule = next((name for name, holds in rules.items() if holds), "own")
        return [first.id, rule, scheduler.missing_blocks(first), len(scheduler.pool.free_queue)]

    def _done(self, tokens: list[int]) -> dict:
        output, scheduler, pool = self.output, self.scheduler, self.scheduler.pool
        scheduled = output.num_scheduled_tokens
        rows = [[each.id, each.num_computed_tokens, count] for each, count in scheduled.items()]
        finished = scheduler.update(output, list(tokens))
        if self.is_own and self.settings["victims"] != "stall":
            audit(scheduler)
        self.steps += 1
        self.clock += STEP_MS + TOKEN_MS * output.num_tokens
        new = [[each.id, token] for each, gets, token in zip(scheduled, output.gets_token, tokens) if gets]
        return {
            "step": self.steps,
            "ms": self.clock,
            "rows": rows,
            "new": new,
            "arrived": self.arrived,
            "refused": self.refused,
            "turnedAway": self.turned_away,
            "running": [[s.id, s.num_tokens, s.num_computed_tokens, s.blocks] for s in scheduler.running],
            "why": self.held_back,
            "waiting": [[each.id, each.num_tokens, len(each.swapped)] for each in scheduler.waiting],
            "finished": [[each.id, each.finish_reason] for each in finished],
            "stalled": [each.id for each in output.stalled],
            "preempted": [each.id for each in output.preempted],
            "cached": {each.id: count for each, count in output.cached.items()},
            "swaps": len(self.copies),
            "findable": sorted(block for block in pool.block_to_hash if block not in pool.ref_count),
            "evicted": pool.evicted,
        }


def own(code: str, file: str, base: type) -> type:
    """A subclass of `base` with what the reader's code defines: functions become methods. It sees what the course's own
    file sees."""
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    names = dict(vars(preemption) | vars(policies))
    before = dict(names)
    exec(compile(code, file, "exec"), names)
    new = {name: thing for name, thing in names.items() if name not in before or before[name] is not thing}
    return type("Own", (base,), {name: thing for name, thing in new.items() if name != "__builtins__"})


def told(error: Exception) -> dict:
    """What went wrong, and in which line of the reader's code, if it is theirs."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((error.filename, error.lineno))
    file, line = next((frame for frame in reversed(frames) if frame[0] in OWN.values()), (None, None))
    return {"kind": type(error).__name__, "text": str(error), "file": file, "line": line}


def sources() -> dict[str, str]:
    """The course's own code, for the reader to change: the methods that schedule, and a policy's `rank`."""
    lines = linecache.getlines(preemption.__file__)
    first, end = (
        next(i for i, line in enumerate(lines) if line.startswith(f"    def {name}("))
        for name in ("schedule", "has_blocks_for")
    )
    schedule = "".join(line[4:] if line.strip() else "\n" for line in lines[first:end]).strip() + "\n"
    return {"schedule": schedule, "rank": RANK}


RANK = '''def rank(self, sequence):
    """The waiting sequence with the smallest rank is admitted first."""
    return sequence.arrival_time
'''
