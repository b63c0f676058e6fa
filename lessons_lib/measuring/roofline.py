"""Lesson 08: the bytes that attention must move, the operations it must do, and a lower bound on its time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """The minimal work of an attention pass.

    Attributes:
        bytes: keys and values read once, queries read, outputs written.
        flop: additions and multiplications of scores and outputs, without the softmax.
    """

    bytes: int
    flop: int

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: operations per byte."""
        return self.flop / self.bytes


@dataclass(frozen=True)
class Machine:
    """A machine's measured limits: read bandwidth of the memory, and rate of a large matrix product."""

    name: str
    bytes_per_s: float
    flop_per_s: float

    @property
    def ridge(self) -> float:
        """The intensity, in operations per byte, at which both limits are reached at once."""
        return self.flop_per_s / self.bytes_per_s


def attention_work(q_lens, context_lens, q_heads, kv_heads, head_dim, bytes_per_element=2):
    """The minimal work of attention of a packed batch over one layer's KV cache.

    A query at position p of its sequence sees p + 1 keys. For each query head and each visible key, the score takes
    head_dim multiplications and as many additions, and so does the output. Each key and value is read once, however
    many queries use it.

    Args:
        q_lens: list of ints, new tokens of each sequence.
        context_lens: list of ints, tokens of each sequence, the new ones included.
        q_heads, kv_heads, head_dim: the model's.
        bytes_per_element: 2 for bfloat16 and float16, 4 for float32.

    Returns:
        Work.
    """
    pairs = sum(q_len * context - q_len * (q_len - 1) // 2 for q_len, context in zip(q_lens, context_lens))
    elements = 2 * sum(context_lens) * kv_heads * head_dim + 2 * sum(q_lens) * q_heads * head_dim
    return Work(bytes=elements * bytes_per_element, flop=4 * pairs * q_heads * head_dim)


def attainable(work: Work, machine: Machine) -> float:
    """Lower bound in seconds: the longer of moving the bytes and doing the operations."""
    return max(work.bytes / machine.bytes_per_s, work.flop / machine.flop_per_s)
