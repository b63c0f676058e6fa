"""Made-up machines on which a victim is swapped or recomputed, and the victims, for the check of 10.3."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lessons_lib.checks.exercise import Mistake
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.scheduling.sequence import Sequence

BYTES = 12_000  # per token
LENGTHS = (128, 512, 2048, 8192)
US = 1e-6


@dataclass(frozen=True)
class Machine:
    """Times that lie on straight lines: microseconds per token, and those that come on top."""

    out: float = 0.0
    into: float = 0.0
    out_base: float = 0.0
    in_base: float = 0.0
    recompute: float = 0.0
    recompute_base: float = 0.0
    swap_bend: float = 0.0  # in all measurements between the first and the last
    recompute_bend: float = 0.0

    def recorded(self, lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, float]]:
        return [
            {
                "tokens": tokens,
                "bytes": tokens * BYTES,
                "swap_out_s": (self.out_base + self.out * tokens + self.swap_bend * (0 < row < len(lengths) - 1)) * US,
                "swap_in_s": (self.in_base + self.into * tokens) * US,
                "recompute_s": (
                    self.recompute_base + self.recompute * tokens + self.recompute_bend * (0 < row < len(lengths) - 1)
                )
                * US,
            }
            for row, tokens in enumerate(lengths)
        ]

    def swap(self, tokens: int) -> float:
        return self.out_base + self.in_base + (self.out + self.into) * tokens

    def __str__(self) -> str:
        swap_base, base = self.out_base + self.in_base, self.recompute_base
        told = f"swapping out takes {self.out:g} µs per token, swapping in {self.into:g} µs"
        told += f", and both together {swap_base / 1000:g} ms on top" if swap_base else ""
        told += f"; each recomputed token takes {self.recompute:g} µs"
        told += f", and a step {base / 1000:g} ms on top" if base else ""
        for what, bend in (("swapping out", self.swap_bend), ("recomputing", self.recompute_bend)):
            told += (
                f"; in the measurements between the first and the last, {what} took {bend / 1000:g} ms longer"
                if bend
                else ""
            )
        return told


@dataclass(frozen=True)
class Case:
    """A machine, a victim, and what to say about a wrong choice."""

    machine: Machine
    computed: int
    idea: str
    size: int = 16
    known: int | None = None
    extra_blocks: int = 0
    answered: int = 0  # of the known tokens
    lengths: tuple[int, ...] = LENGTHS

    def __str__(self) -> str:
        known = self.computed + 1 if self.known is None else self.known
        told = f"{self.machine}; blocks of {self.size}; {self.computed:,} tokens of the victim are computed, "
        told += f"of {known:,} known ones"
        told += f" ({known - self.answered:,} of the prompt, {self.answered:,} of the answer)" if self.answered else ""
        told += f", and it has {self.blocks + self.extra_blocks} blocks." if self.extra_blocks else "."
        return told + (
            f" The recorded lengths are {' and '.join(map(str, self.lengths))}." if self.lengths != LENGTHS else ""
        )

    @property
    def blocks(self) -> int:
        return blocks_for(self.computed, self.size)

    @property
    def swap(self) -> float:
        return self.machine.swap(self.blocks * self.size)

    @property
    def recompute(self) -> float:
        return self.machine.recompute * self.computed

    def asked(self, should_swap: Callable) -> Any:
        known = self.computed + 1 if self.known is None else self.known
        blocks = list(range(self.blocks + self.extra_blocks))
        victim = Sequence(
            "A",
            range(known - self.answered),
            self.answered + 10,
            output_ids=[5] * self.answered,
            num_computed_tokens=self.computed,
            blocks=blocks,
        )
        return should_swap(Asked(BlockPool(1000, self.size), str(self)), victim)


@dataclass(frozen=True)
class Asked:
    """The scheduler that a choice is made for: only its pool matters."""

    pool: BlockPool
    case: str

    @property
    def swap_space(self):
        raise Mistake(
            "your function looks at `scheduler.swap_space`.",
            case=self.case,
            idea="The scheduler itself checks whether the swap space has room. Here only the two times count.",
        )
