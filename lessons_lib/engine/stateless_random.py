"""Lesson 12: a random number for each token that might be drawn, without a state."""

import torch

# SplitMix64 (Steele, Lea & Flood 2014); its constants as signed 64-bit integers.
STEP = 0x9E3779B97F4A7C15 - 2**64
FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def random_numbers(seeds: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """A pseudo-random number between 0 and 1 for each seed, position in the answer, and token id.

    There is no state between draws. So it doesn't matter what else is in the batch, or whether the sequence was
    preempted and came back.

    Args:
        seeds, positions, tokens: int64, of shapes that broadcast.

    Returns:
        float32; neither 0 nor 1.
    """
    stream = mixed(mixed(seeds) + positions)
    bits = mixed(stream + tokens * STEP) >> 32 & 2**32 - 1
    return (bits.float() + 0.5).mul_(2**-32).clamp(max=1 - 2**-24)


def mixed(integers: torch.Tensor) -> torch.Tensor:
    """A hash of each element of an int64 tensor: every bit of it depends on all bits of the element.

    Products wrap around at 64 bits, on every device. `>>` repeats the sign bit; the masks drop what it repeats.
    """
    x = integers + STEP
    x = (x ^ (x >> 30 & 2**34 - 1)).mul_(FACTORS[0])
    x = (x ^ (x >> 27 & 2**37 - 1)).mul_(FACTORS[1])
    return x ^ (x >> 31 & 2**33 - 1)
