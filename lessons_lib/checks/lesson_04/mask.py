"""Judges 04.2, `block_diagonal_mask`: own sequence, not in the future, not padding."""

from dataclasses import dataclass
from random import Random

import torch

from lessons_lib.attention.masks import PADDING, RULES, Tags, combine
from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_01.words import kind
from lessons_lib.checks.lesson_04.rows import drawn
from lessons_lib.checks.lesson_04.wrong_masks import KNOWN, UNKNOWN, WrongRule
from lessons_lib.recording.mask_text import letters, read_pair


@dataclass(frozen=True)
class MaskCase:
    """Queries and keys as (sequence id, position) pairs."""

    queries: tuple[tuple[int, int], ...]
    keys: tuple[tuple[int, int], ...]
    words: str
    note: str = ""  # what is new in this case

    def tags(self) -> tuple[Tags, Tags]:
        return tuple(
            Tags(*(torch.tensor([pair[i] for pair in pairs], dtype=torch.int64) for i in (0, 1)))
            for pairs in (self.queries, self.keys)
        )

    def __str__(self) -> str:
        return self.words


def _sequence(seq_id: int, *positions: int) -> tuple[tuple[int, int], ...]:
    return tuple((seq_id, position) for position in positions)


def _square(*sequences) -> tuple:
    row = tuple(pair for sequence in sequences for pair in sequence)
    return row, row


A3, B2 = _sequence(0, 0, 1, 2), _sequence(1, 0, 1)
PAD2 = _sequence(PADDING, 0, 1)

# Smallest first. The first case has fewer queries than keys, so rows and columns can't be mixed up.
MASK_CASES = (
    MaskCase(
        _sequence(0, 1),
        A3,
        "one query, A at position 1; the keys are A at 0, 1, 2.",
        note="Here a key is later than the query. Only the positions show which one: the number of queries and keys "
        "doesn't.",
    ),
    MaskCase(*_square(A3), "queries and keys are the same three tokens, A at 0, 1, 2."),
    MaskCase(
        _sequence(0, 2) + _sequence(1, 1),
        A3 + B2,
        "two decodes: the queries are A at 2 and B at 1; the keys are A at 0, 1, 2 and B at 0, 1.",
    ),
    MaskCase(*_square(A3, B2), "queries and keys are A at 0, 1, 2 and B at 0, 1."),
    MaskCase(*_square(B2, A3), "queries and keys are B at 0, 1 and A at 0, 1, 2; B comes first in the row."),
    MaskCase(
        _sequence(0, 2) + _sequence(1, 1),
        _sequence(0, 0, 1) + _sequence(1, 0) + _sequence(0, 2) + _sequence(1, 1),
        "two decodes: the queries are A at 2 and B at 1; the keys are the cached A at 0, 1 and B at 0, then the new "
        "A at 2 and B at 1.",
        note="Here a sequence's keys aren't next to each other: B's cached key is between A's cached and A's new key.",
    ),
    MaskCase(
        _sequence(0, 1),
        _sequence(0, 2, 0, 1),
        "one query, A at position 1; the keys are A at 2, 0, 1, in this order.",
        note="Here the keys aren't in the order of their positions. Compare the positions themselves; neither an index "
        "nor a count of keys can replace them.",
    ),
    MaskCase(*_square(_sequence(0, 0), PAD2), "queries and keys are A at 0 and two padding tokens."),
    MaskCase(*_square(PAD2, _sequence(0, 0, 1)), "queries and keys are two padding tokens, then A at 0 and 1."),
    MaskCase(
        *_square(_sequence(0, 0, 5_000, 100_000, 100_001), B2),
        "queries and keys are A at 0, 5,000, 100,000 and 100,001, and B at 0 and 1.",
    ),
)
LONG = MASK_CASES[-1]
MANY = MaskCase(
    *_square(*(_sequence(seq_id, 0) for seq_id in (0, 256, 257))),
    "queries and keys are three tokens at position 0, of sequences 0, 256 and 257.",
)


def check_block_diagonal_mask(attempt) -> None:
    for case in MASK_CASES:
        _check_case(attempt, case)
    _check_case(attempt, MANY)
    rng = Random(4)
    for _ in range(25):
        _check_case(attempt, _random_case(rng))


def _random_case(rng: Random) -> MaskCase:
    """Up to five sequences with cached and new tokens, padding among queries and keys, and the keys shuffled."""
    cached, new = [], []
    for seq_id in range(rng.randint(1, 5)):
        start, length = rng.randrange(6), rng.randint(1, 4)
        cached += _sequence(seq_id, *range(start))
        new += _sequence(seq_id, *range(start, start + length))
    queries = new + list(_sequence(PADDING, *range(rng.randrange(3))))
    keys = rng.sample(cached + queries, len(cached) + len(queries))
    return MaskCase(
        tuple(queries),
        tuple(keys),
        f"{len(queries)} queries and {len(keys)} keys of several sequences, with the keys in random order.",
    )


def _check_case(attempt, case: MaskCase) -> None:
    queries, keys = case.tags()
    before = [tensor.clone() for tags in (queries, keys) for tensor in (tags.seq_ids, tags.positions)]
    got = _mask_of(attempt, queries, keys, case)
    if not all(
        torch.equal(old, new)
        for old, new in zip(before, (queries.seq_ids, queries.positions, keys.seq_ids, keys.positions))
    ):
        raise Mistake(
            "your code changed the tags it was given.",
            case=str(case),
            idea="The model uses the same positions. Compare tensors without writing to them.",
        )
    want = combine(RULES, queries, keys)
    _check_kind(attempt, got, want, queries, keys, str(case))
    if not torch.equal(got.cpu(), want):
        raise _name_wrong_mask(attempt, got.cpu(), want, case)


_EVERY_PAIR = (
    "Compare every query with every key: `queries.positions[:, None]` has shape [queries, 1], and comparing it with "
    "[keys] gives [queries, keys]."
)


def _mask_of(attempt, queries: Tags, keys: Tags, case: MaskCase):
    """Call the attempt, and explain two PyTorch errors that are hard for a beginner to understand."""
    try:
        return call(attempt, queries, keys, case=str(case))
    except RuntimeError as error:
        if "ambiguous" in str(error):
            raise Mistake(
                "Python tried to turn a whole tensor into a single True or False.",
                case=str(case),
                idea="`and` and `or` can't combine tensors elementwise; `&` can. `&` binds more tightly than `==`, "
                "so put parentheses around each comparison: `(a == b) & (c <= d)`.",
            ) from None
        if "must match" in str(error):
            raise Mistake(f"the shapes of two tensors don't match: {error}", case=str(case), idea=_EVERY_PAIR) from None
        raise


def _check_kind(attempt, got, want, queries: Tags, keys: Tags, case: str) -> None:
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"the mask should be a tensor; yours is {kind(got)}.",
            case=case,
            idea="Comparing two tensors gives a tensor of True and False.",
        )
    if got.shape != want.shape:
        idea = f"The shape is [queries, keys]. {_EVERY_PAIR}"
        if got.shape == want.T.shape:
            idea = (
                "You have one row per key. A row is a query and a column is a key: add the new axis to the queries, "
                "`[:, None]`, and leave the keys as they are."
            )
        elif list(got.shape)[-2:] == list(want.shape):
            idea = "`packed_logits` adds the axes for batch and heads later. Here the mask is just [queries, keys]."
        elif list(got.shape) == [len(queries)] * 2:
            idea = "Your mask is square, queries by queries. With a cache there are more keys than queries."
        raise Mistake(
            f"the shape should be [{len(queries)}, {len(keys)}], queries by keys; yours is {list(got.shape)}.",
            case=case,
            idea=idea,
        )
    if got.dtype != torch.bool:
        idea = "True means allowed. Values to add to the scores are another form of a mask: there, 0 means allowed."
        raise Mistake(
            f"the dtype of the mask should be bool; yours is {str(got.dtype).removeprefix('torch.')}.",
            case=case,
            idea=idea,
        )


def _name_wrong_mask(attempt, got, want, case: MaskCase) -> Mistake:
    """Name the mistake by a known wrong mask that equals this one, if possible in all cases."""
    queries, keys = case.tags()
    here = [known for known in KNOWN if torch.equal(got, known.mask(queries, keys))]
    everywhere = [known for known in here if all(_agrees(attempt, known, other) for other in MASK_CASES)]
    known = everywhere[0] if everywhere else here[0] if len(here) == 1 else UNKNOWN
    where, idea = "in your mask", known.idea
    if not everywhere:  # a match in this case alone may have another cause
        where = "in this case" if here else where
        idea = _among_the_queries(attempt) or case.note or UNKNOWN.idea
    if case is LONG:  # all cases with small positions were right
        where, known = "in your mask", UNKNOWN
        idea = (
            "Your mask is right if all positions are small and none is missing. Do you put a sequence id and a "
            "position into one number? Then the late positions of one sequence look like those of the next. Or do you "
            "count keys, or convert the tags to a dtype with few bits? Compare the two tags separately, as they are."
        )
    query, key = (got != want).nonzero()[0].tolist()
    names = letters(int(max(queries.seq_ids.max(), keys.seq_ids.max())) + 1)
    if case is MANY:  # all cases with small ids were right
        where, known = "in your mask", UNKNOWN
        names = [f"sequence {seq_id}" for seq_id in range(len(names))]
        idea = (
            "Your mask is right if all sequence ids are small. Do you convert them to a dtype with few bits? In int8, "
            "256 becomes 0. Compare the ids as they are."
        )
    return Mistake(
        f"{where} {known.what}. For example: {read_pair(queries, keys, query, key, names)} "
        f"Yours {'allows' if got[query, key] else 'forbids'} it. The row of this query should be "
        f"`{drawn(want[query])}`; yours is `{drawn(got[query])}` (# attends, . blocked).",
        case=str(case),
        idea=idea,
    )


def _among_the_queries(attempt) -> str:
    """Why a mask is wrong, if it compares the positions of the queries with each other; else ""."""

    def seen(queries: tuple[int, int], keys: tuple[int, int]) -> list[list[bool]]:
        case = MaskCase(_sequence(0, *queries), _sequence(0, *keys), "")
        return torch.as_tensor(attempt(*case.tags())).tolist()

    try:
        among_queries = seen((0, 1), (1, 0)) == [[True, False], [True, True]]
        among_queries &= seen((1, 0), (0, 1)) == [[True, True], [False, True]]
    except Exception:  # noqa: BLE001 - this attempt is known to be wrong
        return ""
    if not among_queries:
        return ""
    return (
        "With other positions of the keys, your mask stays the same. Do you compare the queries' positions with "
        "themselves? `keys.positions[None, :] <= queries.positions[:, None]`."
    )


def _agrees(attempt, known: WrongRule, case: MaskCase) -> bool:
    try:
        return torch.equal(torch.as_tensor(attempt(*case.tags())).cpu(), known.mask(*case.tags()))
    except Exception:  # noqa: BLE001 - an attempt that raises does not agree
        return False
