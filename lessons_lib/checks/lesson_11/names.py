"""Judges 11.1, `block_hash`: one name for all tokens up to the end of a block, and another name for anything else."""

import hashlib
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short

PARENT = hashlib.sha256(b"a parent").digest()
OTHER_PARENT = hashlib.sha256(b"another parent").digest()


def check_block_hash(attempt) -> None:
    _check_kind(attempt)
    _check_same_again(attempt)
    _check_tokens(attempt)
    _check_parent(attempt)
    _check_chain(attempt)
    _check_spread(attempt)


def _name(attempt, parent: bytes, token_ids: list[int], case: str = "") -> bytes:
    case = case or f"block_hash({'b' + repr('') if not parent else '<name of a block before>'}, {short(token_ids)})"
    try:
        got = call(attempt, parent, list(token_ids), case=case)
    except OverflowError as error:
        raise _too_large(error, case) from None
    except ValueError as error:
        if "256" not in str(error):
            raise
        raise _too_large(error, case) from None
    if not isinstance(got, bytes):
        raise Mistake(
            f"a name should be of type bytes; yours is {type(got).__name__}: {short(got, 60)}.",
            case=case,
            idea=_kind_idea(got),
        )
    return got


def _too_large(error: Exception, case: str) -> Mistake:
    idea = 'A byte holds 0 to 255, and vocabularies have up to 200,000 tokens and more. `array("q", token_ids).tobytes()` takes eight bytes for each.'
    return Mistake(f"your code raised {type(error).__name__}: {str(error)[:80]}.", case=case, idea=idea)


def _kind_idea(got) -> str:
    if isinstance(got, str):
        return "`.hexdigest()` writes the 32 bytes as text. `.digest()` gives the bytes, which the next block can use as its `parent`."
    if isinstance(got, int):
        return (
            "Python's `hash` gives an int of 64 bits. Two blocks may share one by chance, and somebody may find such a pair on purpose; of bytes and strings it is "
            "another one in every process, too. Use `hashlib.sha256(...).digest()`."
        )
    if isinstance(got, bytearray):
        return "A bytearray may change, so it cannot be a key of `hash_to_block`: `bytes(...)` cannot."
    if got is None:
        return "Return the name: `return hashlib.sha256(...).digest()`."
    return "`hashlib.sha256(data)` is an object; its `.digest()` are the bytes."


def _check_kind(attempt) -> None:
    for tokens in ([1, 2, 3, 4], [300, 70_000, 151_935, 0]):
        case = f"block_hash(b'', {tokens})"
        got = _name(attempt, b"", tokens, case)
        if len(got) != 32:
            idea = "SHA-256 gives 32 bytes: `hashlib.sha256(data).digest()`. With few bytes, two beginnings may get one name, and one user reads another's keys."
            raise Mistake(f"a name should have 32 bytes; yours has {len(got)}.", case=case, idea=idea)


def _differ(attempt, one: tuple, other: tuple, idea: str, doing: str) -> None:
    case = f"{_told(one)} and {_told(other)}."
    if _name(attempt, *one) == _name(attempt, *other):
        raise Mistake(f"{doing} should give two names; yours gives one.", case=case, idea=idea)


def _told(arguments: tuple) -> str:
    parent, tokens = arguments
    return f"block_hash({ {b'': 'b' + repr(''), PARENT: 'P', OTHER_PARENT: 'Q'}.get(parent, '…') }, {short(tokens)})"


def _check_same_again(attempt) -> None:
    case = "block_hash(P, [5, 6, 7, 8]), called twice, with two equal lists."
    one = [_name(attempt, PARENT, [5, 6, 7, 8], case) for _ in range(2)]
    first = [5, 6, 7, 8]  # kept alive, so that another list can't get its address
    second = [*first]
    two = [bytes(call(attempt, PARENT, tokens, case=case)) for tokens in (first, second)]
    if len({*one, *two}) > 1:
        idea = "The name may depend on nothing but the parent and the tokens: not on which list it is, not on a time, a counter or chance. Otherwise nothing is ever found again."
        raise Mistake(
            "equal tokens behind the same parent should give the same name; yours gives two.", case=case, idea=idea
        )


def _check_tokens(attempt) -> None:
    lost = "Is `token_ids` in what you hash?"
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [9, 8, 7, 6]), lost, "other tokens")
    short_idea = "Every token counts, the first and the last too."
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [1, 2, 3, 5]), short_idea, "another last token")
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [0, 2, 3, 4]), short_idea, "another first token")
    order = 'The order counts: "dog bites man" is not "man bites dog". A sum, a set or a sorted list loses it.'
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [4, 3, 2, 1]), order, "the same tokens in another order")
    _differ(
        attempt,
        (PARENT, [1, 1, 2, 2]),
        (PARENT, [1, 2, 2, 2]),
        "How often a token stands there counts. A set loses it.",
        "the same tokens, one of them more often,",
    )
    joined = "Written one behind the other, 1 and 12 look like 11 and 2. Give each token the same number of bytes, or put something between them."
    _differ(attempt, (PARENT, [1, 12]), (PARENT, [11, 2]), joined, "1, 12 and 11, 2")
    wrapped = 'Token 65,537 is not token 1. Two bytes a token hold only 65,536 numbers, and `% 256` even fewer; vocabularies are larger. Use eight bytes: `array("q", ...)`.'
    for far in (256, 65_536, 2**17):
        _differ(
            attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [1 + far, 2, 3, 4]), wrapped, f"token 1 and token {1 + far:,}"
        )


def _check_parent(attempt) -> None:
    idea = "The keys of a token depend on all tokens before it. The same block behind another beginning holds other keys, so it needs another name: hash `parent` together with the tokens."
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (OTHER_PARENT, [1, 2, 3, 4]), idea, "the same tokens behind two parents")
    _differ(attempt, (b"", [1, 2, 3, 4]), (PARENT, [1, 2, 3, 4]), idea, "a first block and the same tokens later on")
    flipped = PARENT[:-1] + bytes([PARENT[-1] ^ 1])
    whole = "All 32 bytes of the parent count."
    case = "two parents that differ in the last of their 32 bytes; the same tokens."
    if _name(attempt, PARENT, [1, 2, 3, 4], case) == _name(attempt, flipped, [1, 2, 3, 4], case):
        raise Mistake("two parents should give two names; yours gives one.", case=case, idea=whole)


def _chain(attempt, blocks: list[list[int]]) -> bytes:
    parent = b""
    for tokens in blocks:
        parent = _name(attempt, parent, tokens)
    return parent


def _check_chain(attempt) -> None:
    x, y, z = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]
    idea = "Mixing two hashes by + or ^ forgets which came first, and equal ones cancel. Hash once over both: `hashlib.sha256(parent + ...)`."
    for one, other in (([x, y], [y, x]), ([x, x], [y, y]), ([x, y, z], [y, x, z]), ([x, x, z], [z])):
        if _chain(attempt, one) == _chain(attempt, other):
            what = "two beginnings should end with two names; yours end with one."
            raise Mistake(what, case=f"blocks of 4, named one after the other: {one} and {other}.", idea=idea)


def _check_spread(attempt) -> None:
    rng = Random(2)
    case = "2,000 blocks with random tokens and parents."
    names = [
        _name(attempt, rng.choice((PARENT, OTHER_PARENT, b"")), [rng.randrange(200_000) for _ in range(16)], case)
        for _ in range(2000)
    ]
    if len(set(names)) < len(names):
        raise Mistake(
            f"2,000 different blocks should have 2,000 names; yours have {len(set(names)):,}.",
            case=case,
            idea="Something of the tokens or the parent is lost before it is hashed.",
        )
    dull = [place for place in range(32) if len({name[place] for name in names}) < 100]
    if dull:
        idea = "A short number filled up to 32 bytes is still a short number: Python's `hash` has 64 bits, and of bytes it is another one in every process. Use `hashlib.sha256`."
        what = f"each of the 32 bytes should differ from name to name; in yours byte {dull[-1]} hardly ever changes. One of your names: {names[0].hex()}."
        raise Mistake(what, case=case, idea=idea)
