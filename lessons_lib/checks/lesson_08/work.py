"""Judges 08.4, `attention_work`: the bytes that must move, and the operations that must be done."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.measuring.roofline import attention_work


@dataclass(frozen=True)
class Batch:
    """A packed batch, and the shapes of the model."""

    q_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    q_heads: int
    kv_heads: int
    head_dim: int
    itemsize: int = 2

    def __str__(self) -> str:
        heads = (
            f"q_heads {self.q_heads}, kv_heads {self.kv_heads}, head_dim {self.head_dim}, {self.itemsize} bytes per "
            "element"
        )
        return f"q_lens {list(self.q_lens)}, context_lens {list(self.context_lens)}; {heads}."

    @property
    def lengths(self) -> list[tuple[int, int]]:
        return list(zip(self.q_lens, self.context_lens))

    @property
    def ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The lengths of the first and of the last sequence."""
        return (self.lengths or [(0, 0)])[0], (self.lengths or [(0, 0)])[-1]

    @property
    def kv_elements(self) -> int:
        """Elements of the keys; the values have as many."""
        return sum(self.context_lens) * self.kv_heads * self.head_dim

    @property
    def q_elements(self) -> int:
        return sum(self.q_lens) * self.q_heads * self.head_dim

    @property
    def pairs(self) -> int:
        """Pairs of a query token and a key that it sees."""
        return sum(position + 1 for new, context in self.lengths for position in range(context - new, context))


# Smallest first.
CASES = (
    Batch((1,), (1,), 1, 1, 4),
    Batch((1,), (10,), 1, 1, 4),
    Batch((1,), (10,), 4, 1, 8),
    Batch((1, 1), (10, 3), 4, 2, 8),
    Batch((1,), (10,), 4, 2, 8, 4),
    Batch((2,), (2,), 1, 1, 4),
    Batch((5,), (5,), 4, 2, 8),
    Batch((3,), (10,), 4, 2, 8),
    Batch((3, 1, 5), (10, 7, 5), 14, 2, 64),
    Batch((), (), 4, 2, 8),
)


# All lengths and shapes differ here, so that almost no two wrong ideas give the same counts.
TELLING = Batch((3, 1, 5), (10, 7, 9), 15, 3, 16, 4)


def check_attention_work(attempt) -> None:
    for batch in CASES:
        _check_batch(attempt, batch)
    rng = Random(8)
    for _ in range(20):
        new = [rng.choice((1, 1, rng.randint(1, 50))) for _ in range(rng.randint(1, 6))]
        contexts = [count + rng.choice((0, rng.randint(0, 90))) for count in new]
        kv_heads = rng.choice((1, 2, 8))
        _check_batch(
            attempt,
            Batch(
                tuple(new),
                tuple(contexts),
                kv_heads * rng.choice((1, 4, 7)),
                kv_heads,
                rng.choice((32, 128)),
                rng.choice((2, 4)),
            ),
        )


def _check_batch(attempt, batch: Batch) -> None:
    case = str(batch)
    arguments = (list(batch.q_lens), list(batch.context_lens), batch.q_heads, batch.kv_heads, batch.head_dim)
    got = (
        call(attempt, *arguments, case=case)
        if batch.itemsize == 2
        else call(attempt, *arguments, batch.itemsize, case=case)
    )
    want = attention_work(*arguments, batch.itemsize)
    if (getattr(got, "bytes", None), getattr(got, "flop", None)) == (want.flop, want.bytes) and want.flop != want.bytes:
        idea = (
            "They are swapped. `Work` takes the bytes first and the operations second; with keywords, "
            "`Work(bytes=..., flop=...)`, the order doesn't matter."
        )
        raise Mistake(
            f"`bytes` should be {want.bytes:,} and `flop` {want.flop:,}; yours are {_told(got.bytes)} and "
            f"{_told(got.flop)}.",
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
            idea = _why(attempt, batch, name, found) or _recount(batch, name)
            raise Mistake(f"`{name}` should be {getattr(want, name):,}; yours is {_told(found)}.", case=case, idea=idea)


def _why(attempt, batch: Batch, name: str, found) -> str:
    """The wrong idea that gives this count, and also what the attempt gives in a case where all wrong ideas differ."""
    ideas = _wrong_bytes if name == "bytes" else _wrong_flop
    fitting = [index for index, (_, formed) in enumerate(ideas(batch)) if formed == found]
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
    fitting = [index for index in fitting if told[index] == other]
    return list(ideas(batch))[fitting[0]][0] if fitting else ""


def _told(count) -> str:
    return f"{count:,}" if isinstance(count, (int, float)) else short(count)


def _recount(batch: Batch, name: str) -> str:
    if name == "bytes":
        return (
            f"Elements moved here: keys {batch.kv_elements}, values {batch.kv_elements}, queries {batch.q_elements}, "
            f"outputs {batch.q_elements}. In total, times {batch.itemsize} bytes."
        )
    return (
        f"Pairs of a new token and a key that it sees: {batch.pairs}. Times {batch.q_heads} query "
        f"head{'s' * (batch.q_heads != 1)}, times head_dim {batch.head_dim}, times 4 operations."
    )


def _wrong_bytes(batch: Batch) -> Iterator[tuple[str, int]]:
    kv, q, size = batch.kv_elements, batch.q_elements, batch.itemsize
    right = 2 * kv + 2 * q
    of_query_heads = sum(batch.context_lens) * batch.q_heads * batch.head_dim
    of_new = sum(batch.q_lens) * batch.kv_heads * batch.head_dim
    each_token = sum(new * context for new, context in batch.lengths) * batch.kv_heads * batch.head_dim
    each_pair = batch.pairs * batch.kv_heads * batch.head_dim
    yield f"Those are elements, not bytes. Each element takes {size} bytes.", right
    yield f"An element takes `bytes_per_element` bytes, {size} here; you used 2.", 2 * right
    yield f"An element takes `bytes_per_element` bytes, {size} here; you used 4.", 4 * right
    yield "Keys and values: both are read. You counted only one of them.", (kv + 2 * q) * size
    yield (
        "Queries are read, and outputs are written: both have to move. You counted only one of them.",
        (2 * kv + q) * size,
    )
    yield "Queries and outputs take `bytes_per_element` bytes per element too.", 2 * kv * size + 2 * q
    yield "Keys and values take `bytes_per_element` bytes per element too.", 2 * kv + 2 * q * size
    yield "The queries and the outputs are missing. Each new token has `q_heads` heads of them.", 2 * kv * size
    yield "The keys and values are missing.", 2 * q * size
    yield (
        "Keys and values have `kv_heads` heads. Query heads share them, and what is shared is read once.",
        (2 * of_query_heads + 2 * q) * size,
    )
    yield "Queries and outputs have `q_heads` heads, not `kv_heads`.", (2 * kv + 2 * of_new) * size
    yield "Count the keys of the whole context, not only of the new tokens.", (2 * of_new + 2 * q) * size
    yield (
        "`context_lens` includes the new tokens, and their keys and values are read too. You left them out.",
        (2 * (kv - of_new) + 2 * q) * size,
    )
    yield (
        "`context_lens` includes the new tokens already. You count their keys and values twice.",
        (2 * (kv + of_new) + 2 * q) * size,
    )
    for kv_part, q_part in ((batch.head_dim, 1), (1, batch.head_dim), (batch.head_dim, batch.head_dim)):
        yield (
            "`head_dim` is missing in part of the count. A head of a token has `head_dim` elements: in keys and "
            "values, and in queries and outputs.",
            (2 * kv // kv_part + 2 * q // q_part) * size,
        )
    yield (
        "You count the keys and values again for each new token. All new tokens of a sequence use the same ones, "
        "which are read once.",
        (2 * each_token + 2 * q) * size,
    )
    yield (
        "You count the keys and values again for each new token that sees them. They are read once, however many "
        "tokens use them.",
        (2 * each_pair + 2 * q) * size,
    )
    last, first = (
        2 * context * batch.kv_heads * batch.head_dim + 2 * new * batch.q_heads * batch.head_dim
        for new, context in (batch.ends[1], batch.ends[0])
    )
    yield "That's the last sequence alone. Sum over all of them.", last * size
    yield "That's the first sequence alone. Sum over all of them.", first * size
    longest = 2 * max(batch.context_lens, default=0) * len(batch.q_lens) * batch.kv_heads * batch.head_dim
    yield (
        "That's as if all were as long as the longest. Nothing is padded here: each sequence counts with its own "
        "length.",
        (longest + 2 * q) * size,
    )


def _wrong_flop(batch: Batch) -> Iterator[tuple[str, float]]:
    each = batch.q_heads * batch.head_dim
    right = 4 * batch.pairs * each
    yield (
        "A multiplication and an addition are two operations, and there are two products: scores and outputs. So 4 "
        "per element, not 2.",
        right // 2,
    )
    yield (
        "Each element of each pair takes 4 operations: a multiplication and an addition for the score, and the same "
        "for the output.",
        right // 4,
    )
    yield (
        "That's twice too many: it's 4 operations per element of each pair, 2 for the score and 2 for the output.",
        2 * right,
    )
    yield (
        "Count the operations of all query heads: `q_heads`, not `kv_heads`. They share keys, not work.",
        4 * batch.pairs * batch.kv_heads * batch.head_dim,
    )
    yield (
        "The heads are missing: each query head computes its own scores and outputs.",
        4 * batch.pairs * batch.head_dim,
    )
    square = sum(new * context for new, context in batch.lengths)
    yield (
        "That's the whole rectangle. A token doesn't see later ones: the first of several new tokens sees fewer keys "
        "than the last.",
        4 * square * each,
    )
    below = sum(new * context - new * (new + 1) // 2 for new, context in batch.lengths)
    yield "Off by one key per token. A token also sees itself: at position p it sees p + 1 keys.", 4 * below * each
    more = batch.pairs + sum(batch.q_lens)
    yield (
        "Off by one key per token. A query at position p sees the positions 0 to p, which are p + 1 keys.",
        4 * more * each,
    )
    halves = sum(context * (context + 1) // 2 for _, context in batch.lengths)
    yield (
        "That's the triangle of the whole context, as if all of it were new. Only the new tokens are queries: its "
        "last `q_len` rows.",
        4 * halves * each,
    )
    own = sum(new * (new + 1) // 2 for new, _ in batch.lengths)
    yield "That's the triangle of the new tokens alone. They also see the context before them.", 4 * own * each
    half = sum(new * context / 2 if new > 1 else context for new, context in batch.lengths)
    yield (
        "Half of the rectangle is the triangle only if everything is new, and even then half of the diagonal is "
        "missing. All tokens of a chunk see the context before it.",
        4 * half * each,
    )
    contexts = sum(batch.context_lens)
    yield "You count one query per sequence. A sequence with several new tokens has several.", 4 * contexts * each
    cross = sum(batch.q_lens) * sum(batch.context_lens)
    yield (
        "That's every token with every key of all sequences: dense attention over the batch. A token sees only its "
        "own sequence.",
        4 * cross * each,
    )
    half_of_all = sum(new * context / 2 for new, context in batch.lengths)
    yield (
        "Half of the rectangle isn't the triangle: half of the diagonal is missing, a single new token sees all of "
        "its keys, and every token sees the whole context before the chunk.",
        4 * half_of_all * each,
    )
    for square_of in (lambda new: new * new / 2, lambda new: new * new // 2):
        yield (
            "The later tokens that the queries of a chunk don't see are a triangle without its diagonal: q_len × "
            "(q_len − 1) / 2 pairs, not half of q_len².",
            4 * sum(new * context - square_of(new) for new, context in batch.lengths) * each,
        )
    after = sum(new * context + new * (new + 1) // 2 for new, context in batch.lengths)
    yield (
        "You put the new tokens after the context. `context_lens` includes them: they are at the positions context − "
        "q_len to context − 1.",
        4 * after * each,
    )
    tokens, keys = sum(batch.q_lens), sum(batch.context_lens)
    yield (
        "You count the batch as one long sequence. Each sequence has its own positions, and a token sees only its own "
        "sequence.",
        4 * (tokens * keys - tokens * (tokens - 1) // 2) * each,
    )
    for extra in range(1, 6):
        yield (
            "The softmax isn't counted: 4 × head_dim operations per pair and query head, no more.",
            right + extra * batch.pairs * batch.q_heads,
        )
    yield "Operations don't depend on how many bytes an element takes.", right * batch.itemsize
    last, first = (
        attention_work(batch.q_lens[own], batch.context_lens[own], batch.q_heads, batch.kv_heads, batch.head_dim).flop
        for own in (slice(-1, None), slice(0, 1))
    )
    yield "That's the last sequence alone. Sum over all of them.", last
    yield "That's the first sequence alone. Sum over all of them: is a `return` inside the loop?", first
