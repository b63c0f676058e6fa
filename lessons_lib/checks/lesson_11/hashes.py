"""Judges 11.1, `block_hash`: one hash for all tokens up to the end of a block, and a different hash for anything
else.
"""

import hashlib
import os
import types
from random import Random

from lessons_lib.checks.exercise import Mistake, call, short

PARENT = hashlib.sha256(b"a parent").digest()
OTHER_PARENT = hashlib.sha256(b"another parent").digest()


def check_block_hash(attempt) -> None:
    _check_kind(attempt)
    _check_changed_list(attempt)
    _check_same_again(attempt)
    _check_tokens(attempt)
    _check_parent(attempt)
    _check_chain(attempt)
    _check_spread(attempt)
    _check_python_hash(attempt)


def _hash(attempt, parent: bytes, token_ids: list[int], case: str = "") -> bytes:
    case = case or f"block_hash({'b' + repr('') if not parent else '<parent>'}, {short(token_ids)})"
    try:
        got = call(attempt, parent, list(token_ids), case=case)
    except OverflowError as error:
        raise _too_large(error, case) from None
    except ValueError as error:
        if "256" in str(error):
            raise _too_large(error, case) from None
        if isinstance(error, UnicodeError):
            raise _no_text(error, case) from None
        raise
    if not isinstance(got, bytes):
        raise Mistake(
            f"a block hash should be of type bytes; yours is {type(got).__name__}: {short(got, 60)}.",
            case=case,
            idea=_kind_idea(got),
        )
    if len(got) != 32:
        raise Mistake(
            f"a block hash should have 32 bytes; yours has {len(got)}.", case=case, idea=_length_idea(got, parent)
        )
    return got


def _length_idea(got: bytes, parent: bytes) -> str:
    if parent and len(got) == 64:
        return (
            "This hash will be the parent of the next block. If a hash contained its parent, it would grow from block "
            "to block. Hash the parent together with the tokens."
        )
    if len(got) == 64 and not set(got) - set(b"0123456789abcdef"):
        return (
            "`.hexdigest()` writes each of the 32 bytes as two characters, and encoding the text doesn't undo that. "
            "`.digest()` returns the 32 bytes."
        )
    return (
        "SHA-256 returns 32 bytes: `hashlib.sha256(data).digest()`. With too few bytes, two beginnings may get the "
        "same hash, and one user reads another's keys."
    )


def _too_large(error: Exception, case: str) -> Mistake:
    holds = "A byte holds 0 to 255" if "256" in str(error) else "Here a number doesn't fit into its bytes"
    idea = f'{holds}; ids go up to 200,000. `array("q", token_ids).tobytes()` uses eight bytes for each.'
    return Mistake(f"your code raised {type(error).__name__}: {str(error)[:80]}.", case=case, idea=idea)


def _no_text(error: UnicodeError, case: str) -> Mistake:
    idea = (
        "Are tokens made into characters, as by `chr`? A token id is a number, and 55,296 to 57,343 stand for no "
        'character that can be encoded. `array("q", token_ids).tobytes()` holds the numbers.'
        if isinstance(error, UnicodeEncodeError)
        else "A hash is 32 bytes of any value, not an encoded text. Hash the bytes of `parent` as they are."
    )
    return Mistake(f"your code raised {type(error).__name__}: {error}.", case=case, idea=idea)


def _kind_idea(got) -> str:
    if isinstance(got, str):
        return (
            "`.hexdigest()` returns the 32 bytes as text. `.digest()` returns the bytes, which the next block can "
            "use as its `parent`."
        )
    if isinstance(got, int):
        return (
            "Python's `hash` returns an int of 64 bits. Two blocks may share one by chance, and such a pair can be constructed on purpose. For bytes and strings it "  # noqa: E501
            "also differs from process to process. Use `hashlib.sha256(...).digest()`."
        )
    if isinstance(got, bytearray):
        return "A bytearray can change, so it can't be a key of `hash_to_block`. `bytes(...)` can."
    if got is None:
        return "Return the hash: `return hashlib.sha256(...).digest()`."
    return "`hashlib.sha256(data)` is an object; its `.digest()` returns the bytes."


def _check_kind(attempt) -> None:
    for tokens in ([1, 2, 3, 4], [300, 70_000, 151_935, 0], [55_296]):
        case = f"block_hash(b'', {tokens})"
        _hash(attempt, b"", tokens, case)
    _hash(attempt, PARENT, [1, 2, 3, 4])


def _differ(attempt, one: tuple, other: tuple, idea: str, what: str) -> None:
    case = f"{_in_words(one)} and {_in_words(other)}."
    if _hash(attempt, *one) == _hash(attempt, *other):
        raise Mistake(f"{what} should give two different hashes; yours gives the same one twice.", case=case, idea=idea)


def _in_words(arguments: tuple) -> str:
    parent, tokens = arguments
    return f"block_hash({ {b'': 'b' + repr(''), PARENT: '<parent>', OTHER_PARENT: '<other parent>'}.get(parent, '…') }, {short(tokens)})"  # noqa: E501


def _check_same_again(attempt) -> None:
    case = "block_hash(<parent>, [5, 6, 7, 8]), called twice, with two equal lists."
    one = [_hash(attempt, PARENT, [5, 6, 7, 8], case) for _ in range(2)]
    first = [5, 6, 7, 8]  # kept alive, so that another list can't get its address
    second = [*first]
    two = [bytes(call(attempt, PARENT, tokens, case=case)) for tokens in (first, second)]
    again = bytes(call(attempt, PARENT, first, case=case))
    if len({*one, *two}) > 1:
        idea = (
            "The hash must depend only on the parent and the tokens: not on which list object it gets, not on the "
            "time, a counter or a random number. Otherwise no block is ever found again."
        )
        if again != two[0]:  # of the same list
            idea += (
                " Does each call make a hasher of its own? `update` adds to all that a hasher has got before, so one "
                "that is made outside of the function, or as a default value, goes on from the earlier calls."
            )
        raise Mistake(
            "equal tokens after the same parent should give the same hash; yours gives two different ones.",
            case=case,
            idea=idea,
        )

    _check_first_block_again(attempt)


def _check_first_block_again(attempt) -> None:
    case = "block_hash(b'', [5, 6, 7, 8]), called twice."
    if _hash(attempt, b"", [5, 6, 7, 8], case) != _hash(attempt, b"", [5, 6, 7, 8], case):
        raise Mistake(
            "the same first block should have the same hash each time; yours has two different ones.",
            case=case,
            idea="Is a random number, or the time, put in place of an empty parent? Then no two sequences ever share "
            "their first blocks. `b''` is a parent like any other: hash it with the tokens.",
        )


def _check_changed_list(attempt) -> None:
    """Whether a hash is remembered by the address of the list."""
    parent = os.urandom(32)  # not one that an earlier trial has used
    tokens, others = [5, 6, 7, 8], [9, 8, 7, 6]
    case = "block_hash(<parent>, tokens); then `tokens[:] = [9, 8, 7, 6]`, and again block_hash(<parent>, tokens)."
    before, other = (call(attempt, parent, one, case=case) for one in (tokens, others))
    tokens[:] = others
    after = call(attempt, parent, tokens, case=case)
    if before == after != other:
        raise Mistake(
            "a list with other tokens should have another hash; yours gives the same one as before.",
            case=case,
            idea="Is the hash remembered by `id(token_ids)`, or some other sign of the list object? An object may "
            "get other tokens, and another list may get its address. Compute the hash in every call.",
        )


def _check_tokens(attempt) -> None:
    lost = "Is `token_ids` part of what you hash, and does nothing cut it off?"
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [9, 8, 7, 6]), lost, "different tokens")
    every_token = "Every token counts, including the first and the last."
    between = "Every token counts, including those between the first and the last."
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [1, 2, 3, 5]), every_token, "a different last token")
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [0, 2, 3, 4]), every_token, "a different first token")
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [1, 9, 3, 4]), between, "a different second token")
    long = list(range(64))
    case = "two blocks of 64 tokens that differ in the last one; the same parent."
    if _hash(attempt, PARENT, long, case) == _hash(attempt, PARENT, [*long[:-1], 99], case):
        any_size = (
            "A block may have any size: hash all of its tokens, however many there are. Does a slice or a `zip` end "
            "too early?"
        )
        raise Mistake(
            "two blocks should give two different hashes; yours gives the same one twice.", case=case, idea=any_size
        )
    order = 'The order counts: "dog bites man" is not "man bites dog". A sum, a set or a sorted list loses it.'
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [4, 3, 2, 1]), order, "the same tokens in a different order")
    _differ(
        attempt,
        (PARENT, [1, 1, 2, 2]),
        (PARENT, [1, 2, 2, 2]),
        "It matters how often a token occurs. A set loses that.",
        "the same tokens, one of them more often,",
    )
    joined = (
        "Without a separator, 1 and 12 look like 11 and 2. Use the same number of bytes for each token, or put a "
        "separator between them."
    )
    _differ(attempt, (PARENT, [1, 12]), (PARENT, [11, 2]), joined, "[1, 12] and [11, 2]")
    lengths = (
        "With as many bytes for each token as it needs, nothing says where one token ends and the next begins. Use the "
        "same number of bytes for each token."
    )
    for one, other in (([1, 515], [258, 3]), ([1, 770], [513, 3])):
        _differ(attempt, (PARENT, one), (PARENT, other), lengths, f"{one} and {other}")
    single = "A block may have any size, one token too. Do you hash something that is made of pairs of tokens?"
    _differ(attempt, (PARENT, [5]), (PARENT, [6]), single, "two blocks of one token")
    combined = (
        "Are the tokens made into one number first, as in `number * 31 + token`, or a sum of token × position? Then "
        "many lists give the same number. Hash the tokens themselves."
    )
    _differ(attempt, (PARENT, [2, 0]), (PARENT, [0, 1]), combined, "[2, 0] and [0, 1]")
    for base in (*range(2, 300), 1000, 1009, 10_007, 65_536, 65_537, 65_599, 100_003, 151_936):
        one, other = (PARENT, [1, 0]), (PARENT, [0, base])
        _differ(attempt, one, other, combined, f"[1, 0] and [0, {base}]")
    rounded = "Part of a token id is lost. Are the ids made into floats, which round large ones, or cut off?"
    for one, other in (([2048], [2049]), ([199_998], [199_999])):
        _differ(attempt, (PARENT, one), (PARENT, other), rounded, f"token {one[0]:,} and token {other[0]:,}")
    surrogates = (
        "Are tokens made into characters, as by `chr`? 55,296 to 57,343 stand for no character that can be encoded. If "
        "the encoding leaves them out or replaces them, they become equal. A token id is a number."
    )
    _differ(attempt, (PARENT, [55_296]), (PARENT, [55_297]), surrogates, "token 55,296 and token 55,297")
    wrapped = (
        "Part of a token id is lost. One byte per token, or `% 256`, can tell only 256 ids apart, and two bytes only "
        '65,536; vocabularies are larger. Use eight bytes: `array("q", ...)`.'
    )
    for far in (256, 65_536, 2**17):
        _differ(
            attempt, (PARENT, [1, 2, 3, 4]), (PARENT, [1 + far, 2, 3, 4]), wrapped, f"token 1 and token {1 + far:,}"
        )
    longer = list(range(2000))
    case = "two blocks of 2,000 tokens that differ in token 1,000; the same parent."
    if _hash(attempt, PARENT, longer, case) == _hash(attempt, PARENT, [*longer[:1000], 5, *longer[1001:]], case):
        shortened = (
            "A block may have any size: hash all of its tokens, however many there are. Is a text hashed? The text of "
            "a long array or tensor has `...` instead of the numbers in the middle."
        )
        raise Mistake(
            "two blocks should give two different hashes; yours gives the same one twice.", case=case, idea=shortened
        )

    _check_digits(attempt)


def _check_digits(attempt) -> None:
    """Numbers written with at least so many digits: a longer one runs into the next."""
    for base, name in ((10, "decimal"), (16, "hexadecimal")):
        for width in range(2, 6 if base == 10 else 5):
            text = f"1{'0' * (width - 1)}123456"[: 2 * width + 1]
            one, other = ([int(text[:end], base), int(text[end:], base)] for end in (width, width + 1))
            idea = (
                f"Are tokens written as text, with at least {width} {name} digits each? Ids go up to 200,000, "
                "and a longer one runs into the next. Put a separator between them, or use "
                '`array("q", token_ids).tobytes()`.'
            )
            _differ(attempt, (PARENT, one), (PARENT, other), idea, f"{one} and {other}")


def _check_parent(attempt) -> None:
    idea = (
        "The keys of a token depend on all tokens before it. After a different beginning, the same tokens have "
        "different keys, so the block needs a different hash: hash `parent` together with the tokens."
    )
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (OTHER_PARENT, [1, 2, 3, 4]), idea, "the same tokens after two parents")
    _differ(attempt, (b"", [1, 2, 3, 4]), (PARENT, [1, 2, 3, 4]), idea, "a first block and the same tokens later on")
    whole = "All 32 bytes of the parent count. Are some lost: in a slice, a `zip` or a `decode`?"
    for index in (31, *range(31)):
        flipped = PARENT[:index] + bytes([PARENT[index] ^ 1]) + PARENT[index + 1 :]
        where = {0: "the first of their 32 bytes", 31: "the last of their 32 bytes"}
        case = f"two parents that differ in {where.get(index, f'byte {index} of 0 to 31')}; the same tokens."
        if _hash(attempt, PARENT, [1, 2, 3, 4], case) == _hash(attempt, flipped, [1, 2, 3, 4], case):
            raise Mistake(
                "two parents should give two different hashes; yours gives the same one twice.", case=case, idea=whole
            )
    order = "The order of the parent's bytes counts, too: a sum, a set or a sorted list loses it. Hash `parent` itself."
    two = "two parents with the same bytes in the opposite order"
    _differ(attempt, (PARENT, [1, 2, 3, 4]), (PARENT[::-1], [1, 2, 3, 4]), order, two)


def _chain(attempt, blocks: list[list[int]]) -> bytes:
    parent = b""
    for tokens in blocks:
        parent = _hash(attempt, parent, tokens)
    return parent


def _check_chain(attempt) -> None:
    x, y, z = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]
    idea = (
        "Combining two hashes with + or ^ loses their order, and with ^ equal ones cancel out. Hash both at once: "
        "`hashlib.sha256(parent + ...)`."
    )
    for one, other in (([x, y], [y, x]), ([x, x], [y, y]), ([x, y, z], [y, x, z]), ([x, x, z], [z])):
        if _chain(attempt, one) == _chain(attempt, other):
            what = "two different beginnings should end with different hashes; yours end with the same one."
            raise Mistake(what, case=f"blocks of 4, hashed one after the other: {one} and {other}.", idea=idea)


def _check_python_hash(attempt) -> None:
    """`hash` of bytes differs from process to process: so must nothing that the attempt returns."""
    other = _with_another_hash(attempt)
    case = "block_hash(<parent>, [5, 6, 7, 8]) in two processes."
    if other and _hash(attempt, PARENT, [5, 6, 7, 8], case) != _hash(other, PARENT, [5, 6, 7, 8], case):
        raise Mistake(
            "equal arguments should give the same hash in every process; yours depends on Python's `hash`.",
            case=case,
            idea="For bytes, `hash` returns another number in each process, and it has only 64 bits. Pass the bytes "
            "themselves to `hashlib.sha256`.",
        )


def _with_another_hash(attempt):
    """The attempt and the functions of its cell, with a `hash` that returns other numbers; None if it isn't a plain
    function, or has a `hash` of its own."""
    if not isinstance(attempt, types.FunctionType) or "hash" in attempt.__globals__:
        return None
    names = dict(attempt.__globals__, hash=lambda value: hash(value) ^ 1)

    def again(function):
        made = types.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        made.__kwdefaults__ = function.__kwdefaults__
        return made

    for name, value in attempt.__globals__.items():
        if isinstance(value, types.FunctionType) and value.__globals__ is attempt.__globals__:
            names[name] = again(value)
    return again(attempt)


def _check_spread(attempt) -> None:
    rng = Random(2)
    case = "2,000 blocks with random tokens and parents."
    blocks = [
        (rng.choice((PARENT, OTHER_PARENT, b"")), [rng.randrange(200_000) for _ in range(16)]) for _ in range(2000)
    ]
    hashes = [_hash(attempt, *block, case) for block in blocks]
    if len(set(hashes)) < len(hashes):
        second = next(index for index, one in enumerate(hashes) if one in hashes[:index])
        pair = blocks[hashes.index(hashes[second])], blocks[second]
        raise Mistake(
            f"2,000 different blocks should have 2,000 different hashes; yours have {len(set(hashes)):,}.",
            case=" and ".join(map(_in_words, pair)) + " have the same one.",
            idea="Some part of the tokens or of the parent is lost before it is hashed.",
        )
    if all(byte in b"0123456789abcdefABCDEF" for one in hashes for byte in one):
        idea = (
            "As text, a hash of 16 bytes such as MD5 takes 32 characters, but it is still only 16 bytes long, and "
            "MD5 collisions can be constructed. Use `hashlib.sha256(...).digest()`."
        )
        what = f"a block hash should be 32 bytes of any value; yours contains only hexadecimal digits: {hashes[0]!r}."
        raise Mistake(what, case=case, idea=idea)
    if all(one[:16] == one[16:] for one in hashes):
        idea = "Repeating 16 bytes adds nothing, and MD5 collisions can be constructed. SHA-256 returns 32 bytes."
        what = f"the two halves of a block hash should differ; in yours they are equal: {hashes[0].hex()}."
        raise Mistake(what, case=case, idea=idea)
    constant = [index for index in range(32) if len({one[index] for one in hashes}) < 100]
    if constant:
        idea = (
            "A short checksum that is padded to 32 bytes is still short: Python's `hash` has 64 bits, a CRC 32. Two "
            "blocks may share one by chance, or on purpose. Use `hashlib.sha256(...).digest()`."
        )
        what = (
            f"each of the 32 bytes should vary from hash to hash; in yours byte {constant[-1]} hardly ever "
            f"changes. One of your hashes: {hashes[0].hex()}."
        )
        raise Mistake(what, case=case, idea=idea)
