"""Lesson 19: how much of each prompt a prefix cache finds, by where copies of the states are kept."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from lessons_lib.hybrid.cache_groups import CacheGroup, longest_usable

SIZE, STRIDE = 16, 2048  # tokens of a block; how far apart the copies within a long prompt are
SYSTEM_PROMPTS = {"short": 200, "long": 1500}  # tokens


@dataclass(frozen=True)
class Turn:
    """One request of a conversation: a system prompt, all that was said before, and a new message.

    Attributes:
        name: the conversation's.
        system: which system prompt it begins with.
        num_prompt, num_tokens: its tokens without and with the answer.
    """

    name: int
    system: str
    num_prompt: int
    num_tokens: int

    def blocks(self) -> list[tuple[object, int]]:
        """Stand-ins for the hashes of its full blocks: those within the system prompt are shared."""
        shared = SYSTEM_PROMPTS[self.system] // SIZE
        return [(self.system if i < shared else self.name, i) for i in range(self.num_tokens // SIZE)]


def conversations(num: int = 60, num_open: int = 20, num_turns: int = 6, seed: int = 19) -> list[Turn]:
    """Turns of `num` conversations, of which `num_open` go on at a time, in a random order. A message has 10 to 150
    tokens, an answer 30 to 400."""
    draw = Random(seed)
    systems = [draw.choice(list(SYSTEM_PROMPTS)) for _ in range(num)]
    lengths = [SYSTEM_PROMPTS[system] for system in systems]
    left = dict.fromkeys(range(num), num_turns)
    turns = []
    while left:
        name = draw.choice(list(left)[:num_open])
        left[name] -= 1
        if not left[name]:
            del left[name]
        prompt = lengths[name] + draw.randint(10, 150)
        lengths[name] = prompt + draw.randint(30, 400)
        turns.append(Turn(name, systems[name], prompt, lengths[name]))
    return turns


Rule = Callable[[Turn, int], Iterable[int]]  # (turn, tokens that the layers with attention found) -> where to keep one


def where_it_goes_on(turn: Turn, branch: int) -> set[int]:
    """Where another request is likely to continue: ends of prompts and answers, branches, and every STRIDE tokens."""
    ends = {(end - 1) // SIZE * SIZE for end in (turn.num_prompt, turn.num_tokens)}
    return ends | {branch} | {*range(STRIDE, turn.num_tokens, STRIDE)}


def every(stride: int) -> Rule:
    """At all multiples of `stride` tokens, itself a multiple of SIZE."""
    return lambda turn, branch: range(stride, turn.num_tokens, stride)


@dataclass(frozen=True)
class Hits:
    """Tokens of all prompts that were found and that were computed, and the most copies of states kept at a time."""

    found: int
    computed: int
    copies: int


def replay(
    turns: list[Turn], rule: Rule | None, most: int, match: Callable[[list[CacheGroup]], int] = longest_usable
) -> Hits:
    """Serve turns one after the other. All blocks are kept, and up to `most` copies of states, least recently used out
    first; no rule stands for a model without states."""
    blocks: set[tuple[object, int]] = set()
    copies: OrderedDict[tuple[object, int], None] = OrderedDict()
    found = most_kept = 0
    for turn in turns:
        own = turn.blocks()
        prefix = own[: (turn.num_prompt - 1) // SIZE]  # the last token is computed in any case
        full = CacheGroup([each in blocks for each in prefix], len(prefix))
        states = [CacheGroup([each in copies for each in prefix], 1)] if rule else []
        count = match([full, *states])
        if count and rule:
            copies.move_to_end(own[count - 1])
        for at in sorted(rule(turn, match([full]) * SIZE)) if rule else ():
            if at > count * SIZE:
                copies[own[at // SIZE - 1]] = None
                copies.move_to_end(own[at // SIZE - 1])
        while len(copies) > most:
            copies.popitem(last=False)
        blocks.update(own)
        found, most_kept = found + count * SIZE, max(most_kept, len(copies))
    return Hits(found, sum(turn.num_prompt for turn in turns) - found, most_kept)
