"""Lesson 08: how many bytes attention must read and how many operations it must do, and how fast a machine could be."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """What an attention pass must do at least.

    Attributes:
        bytes: keys and values read once, queries read, outputs written.
        flop: floating-point operations: additions and multiplications of scores and outputs. The softmax is not counted.
    """

    bytes: int
    flop: int

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flop / self.bytes


@dataclass(frozen=True)
class Machine:
    """What a machine does at best, as measured on it.

    Attributes:
        name: of the machine.
        bytes_per_s: read from memory.
        flop_per_s: of a large matrix product.
    """

    name: str
    bytes_per_s: float
    flop_per_s: float

    @property
    def ridge(self) -> float:
        """The intensity, in operations a byte, at which both limits are reached together."""
        return self.flop_per_s / self.bytes_per_s


def attention_work(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2):
    """What attention of a packed row over one layer's cache must do.

    A query at position p of its sequence sees p + 1 keys. For each of its heads and each key that it sees, the score takes
    head_dim multiplications and as many additions, and the output the same once more. Each key and value is read once, by
    whatever many queries it is used.

    Args:
        q_lens: new tokens of each sequence; context_lens: tokens of each, the new ones included.
        bytes_per_element: 2 for bfloat16 and float16, 4 for float32.

    Returns:
        Work.
    """
    pairs = sum(q_len * context - q_len * (q_len - 1) // 2 for q_len, context in zip(q_lens, context_lens))
    numbers = 2 * sum(context_lens) * kv_heads * head_dim + 2 * sum(q_lens) * q_heads * head_dim
    return Work(bytes=numbers * bytes_per_element, flop=4 * pairs * q_heads * head_dim)


def attainable(work: Work, machine: Machine) -> float:
    """Seconds that the work takes at least on this machine: the longer of reading its bytes and doing its operations."""
    return max(work.bytes / machine.bytes_per_s, work.flop / machine.flop_per_s)
