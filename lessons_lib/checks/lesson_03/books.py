"""What the checks of the pool and of the table share: which values count as whole numbers, and block ids as ints."""

from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """ "1 block", "2 blocks"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def is_whole(value: object) -> bool:
    """An int of any kind, numpy's and torch's included, but not a bool."""
    return (
        hasattr(value, "__index__") and type(value).__name__ not in ("bool", "bool_", "Tensor")
    ) or _is_whole_tensor(value)


def is_tensor(value: object) -> bool:
    return type(value).__name__ == "Tensor"


def _is_whole_tensor(value: object) -> bool:
    return is_tensor(value) and value.dim() == 0 and "int" in str(value.dtype)


def block_ids(blocks: Iterable) -> list:
    """Plain ints, whatever container and kind of int an answer uses; anything else as it is."""
    return [int(block) if is_whole(block) else block for block in blocks]
