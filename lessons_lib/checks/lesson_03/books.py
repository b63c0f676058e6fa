"""What the checks of the pool and of the table share: reading the pool's containers, and judging a refusal."""

from collections.abc import Callable, Iterable

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.kv_cache.block_table import TableFull

REFUSALS = (OutOfBlocks, TableFull, ValueError, LookupError, ArithmeticError, AssertionError, TypeError, AttributeError)


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


def queue_of(pool) -> list:
    return list(_part(pool, "free_queue"))


def used_of(pool) -> set:
    return set(_part(pool, "used"))


def _part(pool, name: str):
    part = getattr(pool, name, None)
    if part is None:
        raise Mistake(
            f"the pool has no `{name}` anymore.",
            idea="Keep the two containers from the given `__init__`: `free_queue` and `used`.",
        )
    return part


def refused(
    error: type[Exception],
    method: Callable,
    *args,
    doing: str,
    case: str,
    idea: str,
    unchanged: Callable[[], None],
    because: Callable[[], str] = str,
) -> None:
    """The call must raise `error`, and `unchanged` must find everything as it was before.

    Args:
        doing: the call in words, such as "allocating 3 blocks with 2 free".
        idea: why it must be refused.
        unchanged: raises `Mistake` when something has changed.
        because: what to say instead of `idea`, or "", known only after the call.
    """
    name = error.__name__
    try:
        got = call(method, *args, case=case)
    except error:
        _unchanged(unchanged, case)
        return
    except REFUSALS as other:
        raise Mistake(
            f"{doing} should raise {name}; yours raised {type(other).__name__}: {str(other)[:120]}",
            case=case,
            idea=because() or f"{own_refusal(name)} test for this case first. {idea}",
        ) from None
    raise Mistake(f"{doing} should raise {name}; yours returned {short(got)}.", case=case, idea=because() or idea)


def own_refusal(name: str) -> str:
    """The beginning of an explanation of another exception: the answer's own, or an accident."""
    return f"If your code refuses the call itself, it only has to raise {name} instead. If it doesn't,"


def _unchanged(unchanged: Callable[[], None], case: str) -> None:
    try:
        unchanged()
    except Mistake as mistake:
        raise Mistake(
            f"the call was refused, but it changed something: {mistake.what}",
            case=case,
            idea="Do all checks first. Change something only once the call can no longer be refused.",
        ) from None


def block_ids(blocks: Iterable) -> list:
    """Plain ints, whatever container and kind of int an answer uses; anything else as it is."""
    return [int(block) if is_whole(block) else block for block in blocks]
