"""Judges 08.1, `attention_work`: bytes that must move, and operations that must be done."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.measuring.roofline import attention_work


@dataclass(frozen=True)
class Row:
    """A packed row, and the shapes of the model."""

    q_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    q_heads: int
    kv_heads: int
    head_dim: int
    itemsize: int = 2

    def __str__(self) -> str:
        heads = f"q_heads {self.q_heads}, kv_heads {self.kv_heads}, head_dim {self.head_dim}, {self.itemsize} bytes a number"
        return f"q_lens {list(self.q_lens)}, context_lens {list(self.context_lens)}; {heads}."

    @property
    def lengths(self) -> list[tuple[int, int]]:
        return list(zip(self.q_lens, self.context_lens))

    @property
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The lengths of the first and of the last sequence."""
        return (self.lengths or [(0, 0)])[0], (self.lengths or [(0, 0)])[-1]

    @property
    def kv_numbers(self) -> int:
        """Numbers of the keys; the values are as many."""
        return sum(self.context_lens) * self.kv_heads * self.head_dim

    @property
    def q_numbers(self) -> int:
        return sum(self.q_lens) * self.q_heads * self.head_dim

    @property
    def pairs(self) -> int:
        """Pairs of a query token and a key that it sees."""
        return sum(position + 1 for new, context in self.lengths for position in range(context - new, context))


# Smallest first.
BLOCK_M = (
    Row((1,), (1,), 1, 1, 4),
    Row((1,), (10,), 1, 1, 4),
    Row((1,), (10,), 4, 1, 8),
    Row((1, 1), (10, 3), 4, 2, 8),
    Row((1,), (10,), 4, 2, 8, 4),
    Row((2,), (2,), 1, 1, 4),
    Row((5,), (5,), 4, 2, 8),
    Row((3,), (10,), 4, 2, 8),
    Row((3, 1, 5), (10, 7, 5), 14, 2, 64),
    Row((), (), 4, 2, 8),
)


# All lengths and shapes differ here, so that hardly two wrong ideas give the same numbers.
TELLING = Row((3, 1, 5), (10, 7, 9), 15, 3, 16, 4)


def check_attention_work(attempt) -> None:
    for row in BLOCK_M:
        _check_row(attempt, row)
    rng = Random(8)
    for _ in range(20):
        new = [rng.choice((1, 1, rng.randint(1, 50))) for _ in range(rng.randint(1, 6))]
        contexts = [count + rng.choice((0, rng.randint(0, 90))) for count in new]
        kv_heads = rng.choice((1, 2, 8))
        _check_row(
            attempt,
            Row(
                tuple(new),
                tuple(contexts),
                kv_heads * rng.choice((1, 4, 7)),
                kv_heads,
                rng.choice((32, 128)),
                rng.choice((2, 4)),
            ),
        )


def _check_row(attempt, row: Row) -> None:
    case = str(row)
    arguments = (list(row.q_lens), list(row.context_lens), row.q_heads, row.kv_heads, row.head_dim)
    got = (
        call(attempt, *arguments, case=case)
        if row.itemsize == 2
        else call(attempt, *arguments, row.itemsize, case=case)
    )
    want = attention_work(*arguments, row.itemsize)
    if (getattr(got, "bytes", None), getattr(got, "flop", None)) == (want.flop, want.bytes) and want.flop != want.bytes:
        idea = "They are swapped. `Work` has the bytes first and the operations second; with names, `Work(bytes=..., flop=...)`, the order does not matter."
        raise Mistake(
            f"`bytes` should be {want.bytes:,} and `flop` {want.flop:,}; yours are {_told(got.bytes)} and {_told(got.flop)}.",
            case=case,
            idea=idea,
        )
    for name in ("bytes", "flop"):
        if not hasattr(got, name) or callable(getattr(got, name)):
            raise Mistake(
                f"your function should return a `Work`; it returned {short(got)}.",
                case=case,
                idea="`return Work(bytes=..., flop=...)`.",
            )
        found = getattr(got, name)
        if found != getattr(want, name):
            idea = _why(attempt, row, name, found) or _recount(row, name)
            raise Mistake(f"`{name}` should be {getattr(want, name):,}; yours is {_told(found)}.", case=case, idea=idea)


def _why(attempt, row: Row, name: str, found) -> str:
    """The wrong idea that gives this number, and gives what the attempt says in a case where all wrong ideas differ."""
    ideas = _wrong_bytes if name == "bytes" else _wrong_flop
    fitting = [number for number, (_, formed) in enumerate(ideas(row)) if formed == found]
    try:
        other = getattr(
            attempt(
                list(TELLING.q_lens),
                list(TELLING.context_lens),
                TELLING.q_heads,
                TELLING.kv_heads,
                TELLING.head_dim,
                TELLING.itemsize,
            ),
            name,
        )
    except Exception:  # it fails in another way there
        other = None
    told = [formed for _, formed in ideas(TELLING)]
    fitting = [number for number in fitting if told[number] == other]
    return list(ideas(row))[fitting[0]][0] if fitting else ""


def _told(number) -> str:
    return f"{number:,}" if isinstance(number, (int, float)) else short(number)


def _recount(row: Row, name: str) -> str:
    if name == "bytes":
        return (
            f"Numbers moved here: keys {row.kv_numbers}, values {row.kv_numbers}, queries {row.q_numbers}, outputs {row.q_numbers}. Together, "
            f"times {row.itemsize} bytes."
        )
    return f"Pairs of a new token and a key that it sees: {row.pairs}. Times {row.q_heads} query heads, times {row.head_dim} numbers, times 4 operations."


def _wrong_bytes(row: Row) -> Iterator[tuple[str, int]]:
    kv, q, size = row.kv_numbers, row.q_numbers, row.itemsize
    right = 2 * kv + 2 * q
    of_query_heads = sum(row.context_lens) * row.q_heads * row.head_dim
    of_new = sum(row.q_lens) * row.kv_heads * row.head_dim
    each_token = sum(new * context for new, context in row.lengths) * row.kv_heads * row.head_dim
    each_pair = row.pairs * row.kv_heads * row.head_dim
    yield f"Those are numbers, not bytes. One number has {size} bytes.", right
    yield f"A number has `bytes_per_element` bytes, {size} here; you counted with 2.", 2 * right
    yield f"A number has `bytes_per_element` bytes, {size} here; you counted with 4.", 4 * right
    yield "Keys and values: both are read. You counted one of the two.", (kv + 2 * q) * size
    yield (
        "Queries are read, and outputs are written: both have to move. You counted one of the two.",
        (2 * kv + q) * size,
    )
    yield "The queries and the outputs are missing. They have `q_heads` heads of each new token.", 2 * kv * size
    yield "The keys and values are missing.", 2 * q * size
    yield (
        "Keys and values have `kv_heads` heads. Query heads share them, and what is shared is read once.",
        (2 * of_query_heads + 2 * q) * size,
    )
    yield "Queries and outputs have `q_heads` heads, not `kv_heads`.", (2 * kv + 2 * of_new) * size
    yield "The keys are those of the whole context, not only of the new tokens.", (2 * of_new + 2 * q) * size
    yield (
        "You count the keys and values anew for every new token. All new tokens of a sequence use the same ones, and they are read once.",
        (2 * each_token + 2 * q) * size,
    )
    yield (
        "You count the keys and values anew for every new token that sees them. They are read once, by whatever many tokens they are used.",
        (2 * each_pair + 2 * q) * size,
    )
    last, first = (
        2 * context * row.kv_heads * row.head_dim + 2 * new * row.q_heads * row.head_dim
        for new, context in (row.ends[1], row.ends[0])
    )
    yield "That is the last sequence alone. Add up all of them.", last * size
    yield "That is the first sequence alone. Add up all of them.", first * size
    longest = 2 * max(row.context_lens, default=0) * len(row.q_lens) * row.kv_heads * row.head_dim
    yield (
        "That is as if all were as long as the longest. Nothing is padded here: each sequence counts with its own length.",
        (longest + 2 * q) * size,
    )


def _wrong_flop(row: Row) -> Iterator[tuple[str, int]]:
    each = row.q_heads * row.head_dim
    right = 4 * row.pairs * each
    yield (
        "A multiplication and an addition are two operations, and there are two products: scores, and outputs. So 4 for each number, not 2.",
        right // 2,
    )
    yield (
        "Each number of each pair takes 4 operations: a multiplication and an addition for the score, and the same for the output.",
        right // 4,
    )
    yield (
        "That is twice too much: 4 operations for each number of each pair, 2 for the score and 2 for the output.",
        2 * right,
    )
    yield (
        "The operations are those of all query heads: `q_heads`, not `kv_heads`. They share keys, not work.",
        4 * row.pairs * row.kv_heads * row.head_dim,
    )
    yield (
        "The heads are missing: every query head computes scores and outputs of its own.",
        4 * row.pairs * row.head_dim,
    )
    square = sum(new * context for new, context in row.lengths)
    yield (
        "That is the whole rectangle. A token does not see those behind it: the first of several new tokens sees fewer keys than the last.",
        4 * square * each,
    )
    below = sum(new * context - new * (new + 1) // 2 for new, context in row.lengths)
    yield "Off by one key a token. A token sees itself, too: at position p it sees p + 1 keys.", 4 * below * each
    more = row.pairs + sum(row.q_lens)
    yield (
        "Off by one key a token. A query at position p sees the positions 0 to p, which are p + 1 keys.",
        4 * more * each,
    )
    halves = sum(context * (context + 1) // 2 for _, context in row.lengths)
    yield (
        "That is the triangle of the whole context, as if all of it were new. Only the new tokens compute: the last `q_len` lines of it.",
        4 * halves * each,
    )
    own = sum(new * (new + 1) // 2 for new, _ in row.lengths)
    yield "That is the triangle of the new tokens alone. They see the context before them, too.", 4 * own * each
    half = sum(new * context / 2 if new > 1 else context for new, context in row.lengths)
    yield (
        "Half of the rectangle is the triangle only where everything is new, and even there a diagonal is missing. Before a chunk lies a context that all its tokens see.",
        4 * half * each,
    )
    contexts = sum(row.context_lens)
    yield "You count one query a sequence. A sequence with several new tokens has several.", 4 * contexts * each
    cross = sum(row.q_lens) * sum(row.context_lens)
    yield (
        "Every token with every key of all sequences: that is dense attention over the row. A token sees its own sequence only.",
        4 * cross * each,
    )
    half_of_all = sum(new * context / 2 for new, context in row.lengths)
    yield (
        "Half of the rectangle is no triangle: a diagonal is missing, a single new token sees all of its keys, and so does every token of the context before it.",
        4 * half_of_all * each,
    )
    yield "Operations do not depend on how many bytes a number has.", right * row.itemsize
    last = attention_work(row.q_lens[-1:], row.context_lens[-1:], row.q_heads, row.kv_heads, row.head_dim).flop
    yield "That is the last sequence alone. Add up all of them.", last
