"""11.1, `block_hash`: SHA-256 of all tokens up to the end of a block, and of nothing else."""

import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import product
from random import Random
from typing import Any

import numpy

from lessons_lib.checks.diagnosis import Shown, Task, Watch, kind, mistakes
from lessons_lib.checks.exercise import short

PARENT, OTHER = hashlib.sha256(b"a parent").digest(), hashlib.sha256(b"another parent").digest()
WORDS = {b"": "b''", PARENT: "<parent>", OTHER: "<other parent>"}
Block = tuple[bytes, list[int]]  # parent, tokens
Case = tuple[str, list[Block]]  # what their hashes must be: "differ" or "same"
OTHERS = {"hash": "Python's `hash`", "crc32": "a checksum", "adler32": "a checksum"}
TOO_LARGE = 'Each id must fit into its bytes, up to 200,000. `array("q", token_ids)` uses eight bytes for each.'
DIGESTS: set[bytes] = set()  # all that SHA-256 has returned; an answer may keep what it has computed


PAIRS = (  # of blocks that must differ
    ([5], [6]),
    ([1, 2, 3, 4], [9, 8, 7, 6]),
    ([1, 2, 3, 4], [1, 2, 3, 5]),
    ([1, 2, 3, 4], [0, 2, 3, 4]),
    ([1, 2, 3, 4], [1, 9, 3, 4]),
    ([1, 2, 3, 4], [4, 3, 2, 1]),
    ([1, 1, 2, 2], [1, 2, 2, 2]),
    ([1, 12], [11, 2]),
    ([2, 0], [0, 1]),
    ([1, 515], [258, 3]),
    ([1, 2, 3, 4], [257, 2, 3, 4]),
    ([1, 2, 3, 4], [65_537, 2, 3, 4]),
    ([1, 2, 3, 4], [131_073, 2, 3, 4]),
    ([199_998], [199_999]),
    ([55_296], [55_297]),
    ([*range(64)], [*range(63), 99]),
    ([*range(2000)], [*range(1000), 5, *range(1001, 2000)]),
    ([10, 1234], [101, 234]),  # written with at least two digits, three, ...
    ([100, 12_345], [1001, 2345]),
    ([1000, 123_456], [10_001, 23_456]),
    ([10_000, 123_456], [100_001, 23_456]),
    ([0x10, 0x1234], [0x101, 0x234]),
    ([0x1000, 0x12345], [0x10001, 0x2345]),
)


def cases() -> Iterator[Case]:
    """Smallest first."""
    draw = Random(2)
    for parent in (b"", PARENT):
        yield "same", [(parent, [5, 6, 7, 8])]
    for pair in PAIRS:
        yield "differ", [(PARENT, tokens) for tokens in pair]
    flipped = [PARENT[:index] + bytes([PARENT[index] ^ 1]) + PARENT[index + 1 :] for index in (0, 8, 16, 31)]
    for one, other in ((PARENT, OTHER), (b"", PARENT), (PARENT, PARENT[::-1]), *((PARENT, each) for each in flipped)):
        yield "differ", [(one, [1, 2, 3, 4]), (other, [1, 2, 3, 4])]
    yield "differ", [(PARENT, list(tokens)) for tokens in product((1, 2), repeat=4)]
    yield "differ", [(PARENT, [1, 0]), *((PARENT, [0, base]) for base in (*range(2, 300), 1009, 65_536, 65_599))]
    yield "differ", [(draw.choice((PARENT, b"")), draw.choices(range(200_000), k=16)) for _ in range(300)]


def run(attempt: Any, case: Case, watch: Watch) -> None:
    what, blocks = case
    used: set[str] = set()

    def hash_of(parent: bytes, tokens: list[int]) -> Any:
        words = f"block_hash({WORDS.get(parent, '<parent>')}, {short(tokens, 60)})"
        return watch(f"`{words}`", profiled(attempt, used), parent, tokens, returns=lambda got: kind_of(got, used))

    def compare(blocks: str, hashes: list[bytes]) -> None:
        watch(f"hashing {blocks}", lambda: None, look=lambda: {"the results": counted(hashes)})

    if what == "same":
        (parent, tokens), others = blocks[0], [9, 8, 7, 5]
        kept = [*tokens]  # the same list object three times, and then with other tokens
        hashes = [hash_of(parent, each) for each in (tokens, kept, kept)]
        kept[:] = others
        compare("equal blocks", hashes)
        compare("other tokens in the same list", [hashes[0], hash_of(parent, kept)])
    else:
        compare("different blocks", [hash_of(parent, list(tokens)) for parent, tokens in blocks])


def counted(hashes: list[bytes]) -> Shown:
    """How many different ones there are."""
    number = len(set(hashes))
    return Shown("one hash" if number == 1 else f"{number} different hashes")


def profiled(attempt: Callable[..., Any], used: set[str]) -> Callable[..., Any]:
    """The attempt, while what it hashes with is noted."""

    @wraps(attempt)
    def watched(*args: Any) -> Any:
        before = sys.getprofile()

        def note(frame: Any, event: str, called: Any) -> None:
            if before:
                before(frame, event, called)
            if event == "c_call":
                owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
                if name in ("digest", "hexdigest") and hasattr(owner, "digest_size"):
                    if owner.name.endswith("sha256"):
                        DIGESTS.add(owner.copy().digest())
                    else:
                        used.add("another hash")
                elif name in OTHERS:
                    used.add(OTHERS[name])

        sys.setprofile(note)
        try:
            return attempt(*args)
        finally:
            sys.setprofile(before)

    return watched


def kind_of(got: Any, used: set[str]) -> Any:
    """What of a hash is compared: its kind and length, and what it was computed with."""
    others = " and ".join(sorted(used))
    used.clear()
    if got is None:
        return None
    if not isinstance(got, bytes):
        size = f" of {len(got)} characters" if isinstance(got, str) else ""
        return Shown(f"{kind(got)}{size} by {others}" if others else f"{kind(got)}{size}")
    if got in DIGESTS:
        return Shown(f"32 bytes by SHA-256, of what {others} returned" if others else "32 bytes by SHA-256")
    return Shown(f"{len(got)} bytes by {others}" if others else f"{len(got)} bytes that SHA-256 hasn't returned")


def tell(case: Case) -> str:
    what, blocks = case
    if len(blocks) > 2:
        return f"{len(blocks)} different blocks, the first {blocks[0][1]} and {blocks[1][1]}. All hashes must differ."
    if len(blocks[0][1]) > 16:
        place = next(index for index, (one, other) in enumerate(zip(blocks[0][1], blocks[1][1])) if one != other)
        return f"two blocks of {len(blocks[0][1])} tokens that differ in token {place}, after the same parent."
    words = [f"block_hash({WORDS.get(parent, '<parent with another byte>')}, {short(ids)})" for parent, ids in blocks]
    if what == "same":
        return f"{words[0]} three times, then with other tokens in the same list."
    return f"{' and '.join(words)} must differ."


MISTAKES = """
The keys of a token depend on all tokens before it. After a different beginning, the same tokens have different keys:
hash `parent` together with the tokens.
= return hashlib.sha256(array("q", token_ids).tobytes()).digest()
Only SHA-256 will do, for all of it. For MD5 and SHA-1, pairs with the same hash have been constructed. Other hashes are
as good, but engines that share a cache must use the same one.
~ sha256 => md5
or ~ sha256 => sha1
or ~ sha256 => sha512
or ~ sha256 => sha3_256
or = return hashlib.sha256(hashlib.md5(parent + array("q", token_ids).tobytes()).digest()).digest()
Python's `hash` has 64 bits, and a checksum 32. Two blocks may share one by chance, and such a pair can be constructed,
even if it is padded or hashed again. Pass the tokens themselves to `hashlib.sha256`.
= return hash((parent, tuple(token_ids)))
or = return hash((parent, tuple(token_ids))).to_bytes(8, "little", signed=True)
or = return hashlib.sha256(str(hash((parent, tuple(token_ids)))).encode()).digest()
or = return zlib.crc32(parent + array("q", token_ids).tobytes()).to_bytes(32, "big")
or = return hashlib.sha256(str(zlib.crc32(parent + array("q", token_ids).tobytes())).encode()).digest()
Combining two hashes with ^ or + loses their order, and with ^ equal ones cancel out. Hash both at once:
`hashlib.sha256(parent + ...)`.
- return
+ own = hashlib.sha256(array("q", token_ids).tobytes()).digest()
+ return bytes(a ^ b for a, b in zip(parent.ljust(32, bytes(1)), own))
The hash must depend only on the parent and the tokens: not on which list object it gets, the time, a counter or a
random number, and not in place of an empty parent either. Otherwise no block is ever found again. (A hasher that is
made outside of the function remembers, too: `update` adds to all that it has got before.)
= return hashlib.sha256(parent + str(id(token_ids)).encode() + repr(token_ids).encode()).digest()
or = return hashlib.sha256(parent + os.urandom(8) + array("q", token_ids).tobytes()).digest()
or = return hashlib.sha256((parent or os.urandom(32)) + array("q", token_ids).tobytes()).digest()
The order counts ("dog bites man" is not "man bites dog"), and so does how often a token occurs. A sum, a set, a dict
with the tokens as keys or a sorted list loses that.
= return hashlib.sha256(parent + str(sum(token_ids)).encode()).digest()
or = return hashlib.sha256(parent + array("q", sorted(token_ids)).tobytes()).digest()
or = return hashlib.sha256(parent + array("q", sorted(set(token_ids))).tobytes()).digest()
or = return hashlib.sha256(parent + array("q", dict.fromkeys(token_ids)).tobytes()).digest()
or = return hashlib.sha256(parent + str({token: place for place, token in enumerate(token_ids)}).encode()).digest()
or = return hashlib.sha256(parent + str({token: token_ids.count(token) for token in token_ids}).encode()).digest()
Nothing says where one token ends and the next begins: without a separator, 1 and 12 look like 11 and 2. Use the same
number of bytes or digits for each, enough for ids up to 200,000, or put a separator between them.
= return hashlib.sha256(parent + "".join(map(str, token_ids)).encode()).digest()
or - return
+ data = b"".join(token.to_bytes((token.bit_length() + 7) // 8, "big") for token in token_ids)
+ return hashlib.sha256(parent + data).digest()
or = return hashlib.sha256(parent + "".join(f"{token:05d}" for token in token_ids).encode()).digest()
or = return hashlib.sha256(parent + "".join(f"{token:04x}" for token in token_ids).encode()).digest()
or = return hashlib.sha256(parent + "".join(map(hex, token_ids)).replace("0x", "").encode()).digest()
One or two bytes can tell only 256 or 65,536 ids apart, and ids go up to 200,000. `array("q", token_ids).tobytes()`
uses eight bytes for each.
= return hashlib.sha256(parent + bytes(token_ids)).digest()
or = return hashlib.sha256(parent + bytes(token % 256 for token in token_ids)).digest()
or = return hashlib.sha256(parent + array("H", (token % 65536 for token in token_ids)).tobytes()).digest()
All 32 bytes of the parent count, and their order.
= return hashlib.sha256(parent[:8] + array("q", token_ids).tobytes()).digest()
or = return hashlib.sha256(parent[:16] + array("q", token_ids).tobytes()).digest()
or = return hashlib.sha256(parent[-1:] + array("q", token_ids).tobytes()).digest()
or = return hashlib.sha256(bytes(sorted(parent)) + array("q", token_ids).tobytes()).digest()
or = return hashlib.sha256((parent.decode(errors="ignore") + str(token_ids)).encode()).digest()
Every token counts: the first, the last, and those between. If you hash token by token, each hash must contain the one
before it.
= return hashlib.sha256(parent + array("q", token_ids[:-1]).tobytes()).digest()
or = return hashlib.sha256(parent + array("q", token_ids[1:]).tobytes()).digest()
or = return hashlib.sha256(parent + array("q", [token_ids[0], token_ids[-1]]).tobytes()).digest()
or = return hashlib.sha256(parent + array("q", token_ids[-1:]).tobytes()).digest()
or = return hashlib.sha256(array("q", token_ids[-1:]).tobytes()).digest()
A block may have any size: hash all of its tokens, however many there are.
= return hashlib.sha256(parent + array("q", token_ids[:16]).tobytes()).digest()
The text of a long array or tensor has `...` instead of the numbers in the middle. Hash the numbers.
= return hashlib.sha256(parent + str(numpy.array(token_ids)).encode()).digest()
Are the ids made into floats? They round large ones.
= return hashlib.sha256(parent + b"".join(b"%.3g " % token for token in token_ids)).digest()
or = return hashlib.sha256(parent + numpy.minimum(token_ids, 65504).astype("float16").tobytes()).digest()
Are the tokens made into one number first, as in `number * 31 + token`, or a sum of token × position? Then many lists
give the same number. Hash the tokens themselves.
- return
+ number = 0
+ for token in token_ids: number = number * 31 + token
+ return hashlib.sha256(parent + str(number % 2**61).encode()).digest()
or = return hashlib.sha256(parent + str(sum(i * token for i, token in enumerate(token_ids, 1))).encode()).digest()
"""

TASK = Task(
    reference="lessons_lib.kv_cache.block_hashes:block_hash",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES, zlib=zlib, os=os, numpy=numpy),
    about={
        "returned": "Return `hashlib.sha256(...).digest()` as it is: 32 `bytes`, which the next block uses as its "
        "`parent`. Not the hasher itself, not as text (`.hexdigest()`) or a number, no part of it, and nothing added.",
        "the results": "Hash all bytes of `parent`, every token of `token_ids` in its place and as often as it occurs, "
        "and nothing else.",
        "raised OverflowError": TOO_LARGE,
        "raised RuntimeError": TOO_LARGE,
        "raised error": f"`struct.pack` needs a format with as many numbers as the block has. {TOO_LARGE}",
        "raised TypeError": 'SHA-256 hashes bytes, and only bytes can be added to bytes, such as `parent`. `array("q", '
        "token_ids).tobytes()` turns ints into bytes, and `.encode()` turns a str into them.",
        "raised AttributeError": "`update` changes the hasher and returns None: call `digest` on the hasher. And "
        '`tobytes` belongs to `array("q", token_ids)`; a list has none.',
        "raised UnicodeEncodeError": "Tokens as characters: 55,296 to 57,343 stand for no character that can be "
        "encoded. A token id is a number.",
        "raised UnicodeDecodeError": "A hash is any 32 bytes, not encoded text: hash the bytes as they are.",
    },
)

EXERCISE = TASK.exercise(
    id="11.1",
    title="the hash of a block",
    hints=(
        "SHA-256 takes bytes, and you have 32 bytes and a list of ints. How can ints become bytes so that [1, 12] "
        "and [11, 2], or 1 and 65,537, don't become the same?",
        '`array("q", token_ids)` holds the tokens as ints of eight bytes each, and its `tobytes()` returns them. '
        "`hashlib.sha256(data).digest()` hashes bytes. `+` concatenates bytes.",
        '`return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()`.',
    ),
    points=1,
)
