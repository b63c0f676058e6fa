"""Judges 15.1, `choose_replica`: the longest beginning that a replica was sent, unless that replica is too busy."""

from random import Random

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.serving.router import Replica, choose_replica

BLOCKS = [bytes([index]) * 32 for index in range(8)]  # stand for the hashes of a prompt's blocks
OTHER = [bytes([index]) * 32 for index in range(100, 108)]


def check_choose_replica(attempt) -> None:
    for check in (
        _check_kind, _check_longest, _check_gap, _check_limit, _check_others_limit, _check_unknown, _check_ties,
        _check_nothing_changes, _check_random,
    ):  # fmt: skip
        check(attempt)


def _replica(load: int, blocks: list[bytes], num_sent: int = 0) -> Replica:
    made = Replica(load=load, num_sent=num_sent)
    made.sent_blocks.add(blocks)
    return made


def _letters(blocks: list[bytes]) -> str:
    return "[" + ", ".join(_letter(block) for block in blocks) + "]"


def _letter(block: bytes) -> str:
    return "abcdefgh"[block[0]] if block[0] < 8 else "stuvwxyz"[block[0] - 100]


def _told(prompt: list[bytes], replicas: list[Replica], limit: int) -> str:
    lines = [
        f"replica {index}: load {one.load}, num_sent {one.num_sent}, was sent "
        f"{_letters(sorted(block for block in (*BLOCKS, *OTHER) if block in one.sent_blocks))}"
        for index, one in enumerate(replicas)
    ]
    return f"the prompt's blocks are {_letters(prompt)}, imbalance_limit is {limit}; {'; '.join(lines)}."


def _called(attempt, prompt: list[bytes], replicas: list[Replica], limit: int, case: str):
    def choose(block_hashes):  # `call` would compare the replicas, which have no equality
        return attempt(block_hashes, replicas, limit)

    given = list(replicas)
    try:
        got = call(choose, list(prompt), case=case)
    except TypeError as error:
        whole = [index for index, one in enumerate(replicas) if all(block in one.sent_blocks for block in prompt)]
        if not whole or "NoneType" not in str(error):
            raise
        raise Mistake(
            f"your code raised TypeError: {error}.",
            case=case,
            idea="Something is None where a number is needed. For replica "
            f"{whole[0]}, no block of the prompt is missing: what does your count return then?",
        ) from None
    except (ValueError, IndexError) as error:
        if len(replicas) > 1:
            raise
        raise Mistake(
            f"your code raised {type(error).__name__}: {error}.",
            case=case,
            idea="There is only one replica here. Does your code leave the best one out when it looks for the least "
            "loaded? The best one may itself be the least loaded: take the minimum over all.",
        ) from None
    except StopIteration:
        whole = [index for index, one in enumerate(replicas) if all(block in one.sent_blocks for block in prompt)]
        if not whole:
            raise
        raise Mistake(
            "your code raised StopIteration: a `next` found nothing.",
            case=case,
            idea=f"For replica {whole[0]}, no block of the prompt is missing. Does your code look for the first one "
            "that is? `next(..., default)` returns the default if there is none.",
        ) from None
    if [id(one) for one in given] != [id(one) for one in replicas]:
        raise Mistake(
            "your code changed the list `replicas`.",
            case=case,
            idea="The index that you return is a position in the caller's list. Sort or filter a list of indices.",
        )
    return got


def _choose(attempt, prompt: list[bytes], replicas: list[Replica], limit: int, want: int, idea: str) -> None:
    case = _told(prompt, replicas, limit)
    got = _called(attempt, prompt, replicas, limit, case)
    if isinstance(got, Replica):
        raise Mistake(
            "expected the index of a replica; yours returned the replica itself.",
            case=case,
            idea="The caller looks it up: `replicas[choose_replica(...)]`.",
        )
    if isinstance(got, bool) or not hasattr(got, "__index__"):
        raise Mistake(
            f"expected the index of a replica, an int; yours returned {short(got, 60)}.",
            case=case,
            idea="Return a position in `replicas`: 0 for the first.",
        )
    if not 0 <= got < len(replicas):
        raise Mistake(
            f"expected an index from 0 to {len(replicas) - 1}; yours returned {got}.",
            case=case,
            idea="There is always a replica to choose: if none knows the prompt, it is the least loaded one.",
        )
    if got != want:
        raise Mistake(f"expected replica {want}; yours chose replica {got}.", case=case, idea=idea)


def _check_kind(attempt) -> None:
    _choose(attempt, BLOCKS[:2], [_replica(3, [])], 0, 0, "There is only one replica.")


def _check_longest(attempt) -> None:
    knows = "It was sent this prompt before, so its cache holds the blocks. The other would compute all of them."
    _choose(attempt, BLOCKS[:4], [_replica(0, []), _replica(0, BLOCKS[:4])], 2, 1, knows)
    single = (
        "The prompt has one full block. Replica 1 was sent it, and replica 0 was sent none. Does your code look at the "
        "first and the last block? Or does it count the block at which it stops, too?"
    )
    _choose(attempt, BLOCKS[:1], [_replica(0, []), _replica(0, BLOCKS[:1])], 2, 1, single)
    longer = "Replica 1 was sent two blocks of this prompt, replica 0 only one. The longer beginning saves more."
    _choose(attempt, BLOCKS[:4], [_replica(0, BLOCKS[:1]), _replica(0, BLOCKS[:2])], 2, 1, longer)
    many = "Replica 0 was sent many blocks, but of other prompts. Count only the blocks of *this* prompt."
    _choose(attempt, BLOCKS[:4], [_replica(0, OTHER), _replica(0, BLOCKS[:2])], 2, 1, many)
    busier = "Replica 1 serves one request more, which is within the limit, and it was sent the longer beginning."
    _choose(attempt, BLOCKS[:4], [_replica(0, BLOCKS[:1]), _replica(1, BLOCKS[:3])], 2, 1, busier)


def _check_gap(attempt) -> None:
    gap = (
        "Replica 0 was sent blocks b, c and d, but not a. A prefix cache finds nothing without the first block: stop "
        "at "
        "the first block that is missing."
    )
    _choose(attempt, BLOCKS[:4], [_replica(0, BLOCKS[1:4]), _replica(0, BLOCKS[:1])], 2, 1, gap)
    _choose(attempt, BLOCKS[:4], [_replica(0, BLOCKS[:1] + BLOCKS[2:4]), _replica(0, BLOCKS[:2])], 2, 1, gap)


def _check_limit(attempt) -> None:
    at = (
        "3 more than the least loaded one is not *more than* 3. The replica is exactly at the limit, and may be chosen."
    )
    _choose(attempt, BLOCKS[:4], [_replica(0, []), _replica(3, BLOCKS[:4])], 3, 1, at)
    far = "It serves 30 requests more than the least loaded one. A cached prefix isn't worth a wait behind 30 others."
    _choose(attempt, BLOCKS[:4], [_replica(0, []), _replica(30, BLOCKS[:4])], 3, 0, far)
    over = (
        "It serves 4 requests more than the least loaded one, and the limit is 3. Compare its load with that of the "
        "least loaded replica, not with the mean."
    )
    _choose(attempt, BLOCKS[:4], [_replica(0, []), _replica(4, BLOCKS[:4])], 3, 0, over)
    by_load = (
        "Replica 1 was sent the whole prompt, and is too busy. The load says which one is the least loaded; `num_sent` "
        "only decides between equal loads."
    )
    _choose(attempt, BLOCKS[:2], [_replica(0, [], 2), _replica(9, BLOCKS[:2])], 3, 0, by_load)
    difference = (
        "The limit is about the *difference* to the least loaded replica. If all are busy, the prefix still counts."
    )
    _choose(attempt, BLOCKS[:4], [_replica(20, []), _replica(22, BLOCKS[:4])], 3, 1, difference)
    tie = "The best one is too busy, and two are equally little loaded. The smaller `num_sent` decides here, too."
    _choose(attempt, BLOCKS[:2], [_replica(0, [], 2), _replica(0, [], 1), _replica(9, BLOCKS[:2])], 3, 1, tie)
    equal = "The best one is too busy, and the two others are equal in everything: the first of them."
    _choose(attempt, BLOCKS[:2], [_replica(9, BLOCKS[:2]), _replica(0, []), _replica(0, [])], 3, 1, equal)
    zero = "With a limit of 0, the replica may serve no request more than the least loaded one."
    _choose(attempt, BLOCKS[:4], [_replica(0, []), _replica(1, BLOCKS[:4])], 0, 0, zero)


def _check_others_limit(attempt) -> None:
    idea = (
        "Replica 2 was sent the most, and is too busy. Then the *least loaded* replica gets the request, even if "
        "another one was sent a shorter beginning."
    )
    _choose(attempt, BLOCKS[:4], [_replica(1, BLOCKS[:2]), _replica(0, []), _replica(9, BLOCKS[:4])], 3, 1, idea)
    tie = (
        "Replica 2 is too busy, and the two others are equally little loaded. Then `num_sent` decides; what they were "
        "sent of this prompt makes no difference any more."
    )
    _choose(attempt, BLOCKS[:4], [_replica(0, [], 1), _replica(0, BLOCKS[:2], 2), _replica(9, BLOCKS[:4])], 3, 0, tie)
    known = (
        "Replica 2 is too busy. The least loaded one gets the request, also if it is one that was sent a shorter "
        "beginning."
    )
    _choose(attempt, BLOCKS[:4], [_replica(1, []), _replica(0, BLOCKS[:2]), _replica(9, BLOCKS[:4])], 3, 1, known)


def _check_unknown(attempt) -> None:
    unknown = "No replica was sent any of it, so only the load counts."
    _choose(attempt, BLOCKS[:2], [_replica(2, OTHER[:3]), _replica(1, []), _replica(3, [])], 5, 1, unknown)
    short_prompt = "A prompt without a full block has no prefix that could be cached: the least loaded replica."
    _choose(attempt, [], [_replica(1, BLOCKS), _replica(0, [])], 5, 1, short_prompt)


def _check_ties(attempt) -> None:
    tie = "Both were sent the whole prompt. Then the less loaded one is the better choice."
    _choose(attempt, BLOCKS[:2], [_replica(2, BLOCKS[:2]), _replica(1, BLOCKS[:2])], 5, 1, tie)
    sent = (
        "Equally much of the prompt, and equally loaded: the one with the smaller `num_sent`. Otherwise an idle system "
        "would send everything to the first replica."
    )
    _choose(attempt, BLOCKS[:2], [_replica(0, [], 4), _replica(0, [], 3)], 5, 1, sent)
    load_first = "`num_sent` only decides between equally loaded replicas. The load comes first."
    _choose(attempt, BLOCKS[:2], [_replica(0, [], 9), _replica(1, [], 0)], 5, 0, load_first)
    first = "Equal in everything: the first of them."
    _choose(attempt, BLOCKS[:2], [_replica(1, []), _replica(0, []), _replica(0, [])], 5, 1, first)


def _check_nothing_changes(attempt) -> None:
    replicas = [_replica(1, BLOCKS[:1]), _replica(0, BLOCKS[:2])]
    case = _told(BLOCKS[:4], replicas, 2)
    before = [(one.load, one.num_sent, list(one.sent_blocks._hashes)) for one in replicas]
    _called(attempt, BLOCKS[:4], replicas, 2, case)
    if before != [(one.load, one.num_sent, list(one.sent_blocks._hashes)) for one in replicas]:
        raise Mistake(
            "your code changed a replica.",
            case=case,
            idea="`choose_replica` only chooses. The balancer calls `begin` of the replica that was chosen.",
        )


def _check_random(attempt) -> None:
    draw = Random(5)
    for _ in range(300):
        replicas = [
            _replica(draw.randrange(5), draw.choice((BLOCKS, OTHER))[: draw.randrange(5)], draw.randrange(4))
            for _ in range(draw.randrange(1, 6))
        ]
        prompt, limit = BLOCKS[: draw.randrange(6)], draw.randrange(4)
        idea = (
            "First the replica that was sent the longest beginning (ties: load, then `num_sent`, then the first). If "
            "it "
            "serves more than `imbalance_limit` requests more than the least loaded one: the least loaded one."
        )
        _choose(attempt, prompt, replicas, limit, choose_replica(prompt, replicas, limit), idea)
