"""Judges 15.3, `relay`, with replicas that fail at every point of a stream."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.serving.failover import Chunk, ReplicaLost
from lessons_lib.viz.words import marked

TOKENS = [11, 12, 13, 14, 15]  # what every replica would answer
REQUEST = {"prompt": [5, 6], "max_tokens": 5, "seed": 7}


def check_relay(attempt) -> None:
    for check in (
        _check_one, _check_as_it_comes, _check_choice, _check_lost_anywhere, _check_connection_cut, _check_opening,
        _check_lost_twice, _check_begun, _check_larger_chunks, _check_chosen_again, _check_after_the_last_token,
        _check_none_left, _check_max_moves, _check_refused, _check_refused_late, _check_error_chunk, _check_seed,
        _check_drawn_seeds, _check_other_streams, _check_over_before_the_next, _check_reader_leaves,
    ):  # fmt: skip
        check(attempt)


@dataclass(eq=False)
class FakeReplica:
    """Streams TOKENS, one a chunk, and the reason in a chunk of its own, unless something goes wrong. If `in_chunk` is
    above 1, the reason comes with the last tokens.

    Attributes:
        lost_after: it is lost after so many chunks of a stream; None for never.
        how: "raise", "end" as a cut connection does, or "refuse": the chunk raises a ValueError.
        refuses: what `stream` raises.
        in_chunk: the number of tokens in a chunk.
        log: what has happened, in order: shared by the replicas of a case.
    """

    name: str
    lost_after: int | None = None
    how: str = "raise"
    refuses: Exception | None = None
    in_chunk: int = 1
    last: Chunk = field(default_factory=lambda: Chunk([], "length"))
    log: list = field(default_factory=list)
    load: int = 0
    requests: list = field(default_factory=list)
    streams: list = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<replica {self.name}>"

    def __deepcopy__(self, memo):
        return self  # `call` compares lists of replicas

    def stream(self, request):
        if not isinstance(request, dict):
            self.requests.append(None)  # not a Mistake yet: the learner's code may catch it
            raise ReplicaLost("asked for nothing")
        self.requests.append(dict(request))
        self.log.append((self.name, self.load))
        if self.refuses:
            raise self.refuses
        stream = FakeStream(self, list(TOKENS[len(request.get("output_token_ids", ())) :]))
        self.streams.append(stream)
        return stream


class FakeStream:
    def __init__(self, replica: FakeReplica, tokens: list[int]):
        self.replica, self.num_sent, self.is_closed = replica, 0, False
        size = replica.in_chunk
        parts = [tokens[start : start + size] for start in range(0, len(tokens), size)]
        if size == 1:
            self.chunks = [*map(Chunk, parts), replica.last]
        else:
            self.chunks = [*map(Chunk, parts[:-1]), Chunk(parts[-1], "length")]

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        if self.num_sent == self.replica.lost_after:
            if self.replica.how == "end":
                raise StopIteration
            if self.replica.how == "refuse":
                raise ValueError("max_tokens is -1")
            raise ReplicaLost(f"replica {self.replica.name} has gone")
        if self.num_sent == len(self.chunks):
            raise StopIteration
        self.num_sent += 1
        return self.chunks[self.num_sent - 1]

    def close(self) -> None:
        self.is_closed = True


def _first(replicas) -> int:
    return 0


def _start(attempt, replicas, case: str, request=None, choose=_first, **options):
    log: list = []
    for replica in replicas:
        replica.log = log
    got = call(attempt, dict(REQUEST) if request is None else request, replicas, choose, case=case, **options)
    if isinstance(got, (list, tuple)):
        raise Mistake(
            f"expected an iterator of chunks; yours returned a {type(got).__name__}.",
            case=case,
            idea="The reader should get each chunk as soon as it is there: `yield chunk`.",
        )
    if not hasattr(got, "__next__"):
        raise Mistake(
            f"expected an iterator of chunks; yours returned {short(got, 60)}.",
            case=case,
            idea="A function that contains `yield` returns a generator. Pass chunks on with `yield chunk`.",
        )
    return got


def _relayed(attempt, replicas, case: str, request=None, choose=_first, want=None, **options) -> list[Chunk]:
    """All chunks; the tokens must be `want` (all of them if None), with one reason at the end and nothing left open."""
    given, request = list(replicas), dict(request or REQUEST)
    before = dict(request)
    chunks = list(islice(_start(attempt, replicas, case, request, choose, **options), 40))
    if replicas != given:
        raise Mistake(
            f"your code changed its argument `replicas`: it was {given}, and is {replicas}.",
            case=case,
            idea="The balancer needs the list for other requests. Make a copy first: `list(replicas)`.",
        )
    if request != before:
        raise Mistake(
            f"your code changed its argument `request`: it was {before}, and is {request}.",
            case=case,
            idea='Make a new dict: `request = {**request, "seed": ...}`.',
        )
    _check_not_asked_for_none(replicas, case)
    for chunk in chunks:
        if not isinstance(chunk, Chunk):
            raise Mistake(
                f"expected Chunks; yours yielded {short(chunk, 60)}.",
                case=case,
                idea="Pass a replica's chunks on as they are, and make new ones with `Chunk(token_ids, "
                "finish_reason)`.",
            )
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    want = TOKENS if want is None else want
    if tokens != want:
        raise Mistake(
            f"the reader should get the tokens {want}; yours got {marked(want, tokens)}.",
            case=case,
            idea=_why_asked(replicas, chunks, want) or _why_tokens(tokens, want),
        )
    reasons = [chunk.finish_reason for chunk in chunks if chunk.finish_reason]
    if len(reasons) != 1 or not chunks[-1].finish_reason:
        raise Mistake(
            f"the last chunk, and only that one, should have a finish_reason; yours have {reasons}"
            f"{'' if not reasons or chunks[-1].finish_reason else ', and another chunk follows'}.",
            case=case,
            idea="A reader waits for the reason. Without one it can't tell a complete answer from one that was cut off."
            if not reasons
            else "After a chunk with a reason nothing follows: `return`.",
        )
    _check_nothing_left(replicas, case)
    return chunks


def _check_not_asked_for_none(replicas, case: str) -> None:
    for replica in replicas:
        if None in replica.requests:
            raise Mistake(
                f"{replica} was asked for None, which is not a request.",
                case=case,
                idea="`request_to_go_on` returns None if the completion has all its tokens. Don't ask a replica then.",
            )


def _why_asked(replicas, chunks: list[Chunk], want: list[int]) -> str:
    twice = "`request_to_go_on` adds the tokens to those that its request has already."
    for replica in replicas:
        for asked in replica.requests:
            known = list(asked.get("output_token_ids", ()))
            if len(set(known)) < len(known):
                return f'{replica} was asked with "output_token_ids" {known}: some are in it twice. {twice}'
    got = sum(len(chunk.token_ids) for chunk in chunks)
    if chunks and chunks[-1].finish_reason in ("stop", "length") and got < len(want):
        return f"Yours took it for complete with {got} of {len(want)} tokens. Were some counted twice? {twice}"
    return ""


def _why_tokens(tokens: list[int], want: list[int]) -> str:
    if len(tokens) > len(want) or len(set(tokens)) < len(tokens):
        return (
            "Some tokens came twice. The second replica must be asked for the rest: `request_to_go_on(request, "
            "token_ids)`, "
            "with *all* tokens that the reader got since the first request."
        )
    if tokens == want[: len(tokens)]:
        return "The stream stopped too early. As long as a replica is left and moves are left, it goes on."
    return "Tokens are missing in the middle. Yield every chunk, and keep the list of what was yielded complete."


def _check_nothing_left(replicas, case: str) -> None:
    for replica in replicas:
        if replica.load != 0:
            raise Mistake(
                f"afterwards, the load of {replica} should be 0; it is {replica.load}.",
                case=case,
                idea="It serves nothing any more. If its load stays up, it is never chosen again. `finally` runs in "
                "every "
                "case: after the last chunk, after an error, and if the reader leaves."
                if replica.load > 0
                else "Lower the load once for each time that you raised it.",
            )
        if any(not stream.is_closed for stream in replica.streams):
            raise Mistake(
                f"the stream of {replica} was not closed.",
                case=case,
                idea="`stream.close()` ends the connection. If a replica still runs, it aborts the request. Close it "
                "in "
                "every case, in `finally`.",
            )


def _check_one(attempt) -> None:
    replica = FakeReplica("A")
    case = "one replica that doesn't fail. It yields five chunks of one token, and Chunk([], 'length')."
    chunks = _relayed(attempt, [replica], case)
    if chunks[-1].finish_reason != "length":
        raise Mistake(
            f"the last chunk's reason should be 'length'; yours is {chunks[-1].finish_reason!r}.",
            case=case,
            idea="Pass the replica's last chunk on as it is.",
        )
    if len(replica.requests) != 1:
        raise Mistake(
            f"the replica should be asked once; it was asked {len(replica.requests)} times.",
            case=case,
            idea="The stream was complete. There is nothing to ask for.",
        )
    if replica.log[0][1] != 1:
        raise Mistake(
            f"while the replica serves the stream, its load should be 1; it was {replica.log[0][1]} when it was asked.",
            case=case,
            idea="Raise the load *before* you ask, so that the next choice counts this request.",
        )
    if list(replica.requests[0].get("output_token_ids", ())):
        raise Mistake(
            f"the first request should have no output tokens; yours is {replica.requests[0]}.",
            case=case,
            idea="Nothing has been generated yet.",
        )


def _check_as_it_comes(attempt) -> None:
    case = "one replica that doesn't fail; the reader takes one chunk and looks."
    replica = FakeReplica("A")
    reader = _start(attempt, [replica], case)
    next(reader)
    if replica.streams[0].num_sent > 1:
        raise Mistake(
            f"the reader has taken 1 chunk, and your code has read {replica.streams[0].num_sent} from the replica.",
            case=case,
            idea="Pass each chunk on before you read the next one. Otherwise it isn't a stream.",
        )
    _close(reader, case)


def _check_choice(attempt) -> None:
    case = "replicas A, B and C; `choose` returns 2."
    seen: list = []

    def last(replicas):
        seen.append(list(replicas))
        return len(replicas) - 1

    replicas = [FakeReplica(name) for name in "ABC"]
    _relayed(attempt, replicas, case, choose=last)
    if not seen:
        raise Mistake("`choose` was not called.", case=case, idea="Which replica is asked is the policy's decision.")
    if [bool(each.requests) for each in replicas] != [False, False, True]:
        asked = [each.name for each in replicas if each.requests]
        raise Mistake(
            f"replica C should be asked; {' and '.join(asked)} was.",
            case=case,
            idea="`choose` returns an index of its list.",
        )


def _check_lost_anywhere(attempt) -> None:
    for lost_after in range(5):
        case = f"A is lost (ReplicaLost) after {lost_after} chunk{'s' * (lost_after != 1)}; B is fine."
        a = FakeReplica("A", lost_after=lost_after)
        list(islice(_start(attempt, [a, FakeReplica("B")], case), 40))
        if len(a.requests) > 1:
            raise Mistake(
                "replica A was asked again after it was lost.",
                case=case,
                idea="`choose` gets only the replicas that haven't failed: take a lost one out of the list.",
            )
        _relayed(attempt, [FakeReplica("A", lost_after=lost_after), FakeReplica("B")], case)


def _check_connection_cut(attempt) -> None:
    for lost_after in (0, 3):
        case = f"A's stream simply ends after {lost_after} chunks, without a finish_reason; B is fine."
        chunks = list(islice(_start(attempt, [FakeReplica("A", lost_after, "end"), FakeReplica("B")], case), 40))
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        if tokens != TOKENS:
            raise Mistake(
                f"the reader should get {TOKENS}; yours got {marked(TOKENS, tokens)}.",
                case=case,
                idea="A complete stream ends with a finish_reason. One that ends without it was cut: treat the "
                "replica as "
                "lost.",
            )
        _relayed(attempt, [FakeReplica("A", lost_after, "end"), FakeReplica("B")], case)


def _check_opening(attempt) -> None:
    case = "A can't even be asked: `A.stream(...)` raises ReplicaLost; B is fine."
    try:
        _relayed(attempt, [FakeReplica("A", refuses=ReplicaLost("no connection")), FakeReplica("B")], case)
    except ReplicaLost:
        raise Mistake(
            "your code raised ReplicaLost.",
            case=case,
            idea="`replica.stream(...)` may raise too, not only the loop over its chunks. It belongs inside the `try`.",
        ) from None


def _check_lost_twice(attempt) -> None:
    case = "A is lost after 2 chunks, B after 1 more; C is fine."
    c = FakeReplica("C")
    _relayed(attempt, [FakeReplica("A", 2), FakeReplica("B", 1), c], case)
    if list(c.requests[0].get("output_token_ids", ())) != TOKENS[:3]:
        raise Mistake(
            f"C should go on behind {TOKENS[:3]}; it was asked {c.requests[0]}.",
            case=case,
            idea="Two tokens from A and one from B: collect the tokens of all replicas.",
        )


def _check_begun(attempt) -> None:
    request = {**REQUEST, "output_token_ids": TOKENS[:2]}
    case = f"the completion had begun before: the request is {request}; A is lost after 1 chunk; B is fine."
    a, b = FakeReplica("A", 1), FakeReplica("B")
    list(islice(_start(attempt, [a, b], case, request), 40))
    _check_not_asked_for_none([a, b], case)
    for replica, want in ((a, TOKENS[:2]), (b, TOKENS[:3])):
        got = [list(asked.get("output_token_ids", ())) for asked in replica.requests]
        if got != [want]:
            raise Mistake(
                f"{replica} should be asked once, with the output tokens {want}; yours asked with {got}.",
                case=case,
                idea="Ask the first replica for the request as it is. `request_to_go_on` puts the earlier tokens "
                "before those that the reader got in answer to `request`.",
            )
    _relayed(attempt, [FakeReplica("A", 1), FakeReplica("B")], case, request, want=TOKENS[2:])


def _check_larger_chunks(attempt) -> None:
    case = (
        "A's and B's chunks have two tokens each, and the reason comes in the same chunk as the last tokens; A is lost "
        "after one chunk."
    )
    b = FakeReplica("B", in_chunk=2)
    got = list(islice(_start(attempt, [FakeReplica("A", 1, in_chunk=2), b], case), 40))
    if [token for chunk in got for token in chunk.token_ids] == TOKENS[:4]:
        raise Mistake(
            f"the reader should get the tokens {TOKENS}; yours got {TOKENS[:4]}.",
            case=case,
            idea="A chunk with a finish_reason can have tokens too. Yield it as it is.",
        )
    if b.requests and list((b.requests[0] or {}).get("output_token_ids", ())) != TOKENS[:2]:
        raise Mistake(
            f"B should go on behind {TOKENS[:2]}; it was asked {b.requests[0]}.",
            case=case,
            idea="A chunk can have several tokens. Note all of them: `token_ids += chunk.token_ids`.",
        )
    _relayed(attempt, [FakeReplica("A", 1, in_chunk=2), FakeReplica("B", in_chunk=2)], case)


def _check_chosen_again(attempt) -> None:
    case = "replicas A, B and C; `choose` returns the index of the last one in its list; C is lost after 2 chunks."
    seen: list = []

    def last(replicas):
        seen.append([each.name for each in replicas])
        return len(replicas) - 1

    replicas = [FakeReplica("A"), FakeReplica("B"), FakeReplica("C", 2)]
    _relayed(attempt, replicas, case, choose=last)
    if replicas[0].requests or seen != [["A", "B", "C"], ["A", "B"]]:
        raise Mistake(
            "`choose` should be called with [A, B, C], then with [A, B], and B should be asked; yours called it with "
            f"{' and '.join('[' + ', '.join(names) + ']' for names in seen)}.",
            case=case,
            idea="`choose` also decides which replica goes on: ask it again for each move, with those that are left.",
        )


def _check_after_the_last_token(attempt) -> None:
    for request, reason in ((REQUEST, "length"), ({**REQUEST, "max_tokens": 9, "stop_token_ids": [15]}, "stop")):
        for others, options in ((1, {}), (0, {}), (1, {"max_moves": 0})):
            left = "one other replica" if others else "no other replica"
            left += "; max_moves = 0" if options else ""
            case = f"A is lost after all five tokens, before its last chunk; {left}; {request}."
            replicas = [FakeReplica("A", 5), *(FakeReplica("B") for _ in range(others))]
            chunks = list(islice(_start(attempt, replicas, case, request, **options), 40))
            _check_not_asked_for_none(replicas, case)
            if not chunks or chunks[-1].finish_reason != reason:
                got = chunks[-1].finish_reason if chunks else None
                raise Mistake(
                    f"the last chunk's reason should be {reason!r}; yours is {got!r}.",
                    case=case,
                    idea="The reader has the whole completion: `request_to_go_on` returns None. Only the reason is "
                    "missing. "
                    "It is 'stop' if the last token is in `stop_token_ids`, else 'length'.",
                )
            replicas = [FakeReplica("A", 5), *(FakeReplica("B") for _ in range(others))]
            _relayed(attempt, replicas, case, request, **options)


def _check_none_left(attempt) -> None:
    case = "A is lost after 2 chunks, B after none; there is no other replica."
    chunks = _relayed(attempt, [FakeReplica("A", 2), FakeReplica("B", 0)], case, want=TOKENS[:2])
    if chunks[-1].finish_reason != "error" or not chunks[-1].error:
        raise Mistake(
            f"the last chunk should have the reason 'error' and say what happened in `error`; yours is {chunks[-1]}.",
            case=case,
            idea="The reader must learn that the answer is not complete: `yield Chunk([], 'error', '...')`.",
        )


def _check_max_moves(attempt) -> None:
    for max_moves in (0, 1, 2):
        case = f"six replicas, and each is lost after one chunk; max_moves = {max_moves}."
        replicas = [FakeReplica(name, 1) for name in "ABCDEF"]
        start = _start(attempt, replicas, case, max_moves=max_moves)
        list(islice(start, 40))
        asked = sum(bool(replica.requests) for replica in replicas)
        if asked != max_moves + 1:
            raise Mistake(
                f"the number of replicas that are asked should be {max_moves + 1}; yours is {asked}.",
                case=case,
                idea="It may be the request that kills them. Without a limit, one request takes down every replica."
                if asked > max_moves + 1
                else "The first replica doesn't count: `max_moves` is how many *more* are asked.",
            )
        _relayed(
            attempt,
            [FakeReplica(name, 1) for name in "ABCDEF"],
            case,
            want=TOKENS[: max_moves + 1],
            max_moves=max_moves,
        )


def _check_refused(attempt) -> None:
    case = "`A.stream(...)` raises ValueError('max_tokens is -1'); B would raise the same."
    replicas = [FakeReplica(name, refuses=ValueError("max_tokens is -1")) for name in "AB"]
    try:
        chunks = _relayed(attempt, replicas, case, want=[])
    except ValueError:
        raise Mistake(
            "your code raised ValueError.",
            case=case,
            idea="The reader gets an error as a chunk: `yield Chunk([], 'error', str(error))`.",
        ) from None
    if replicas[1].requests:
        raise Mistake(
            "B was asked too.",
            case=case,
            idea="A wasn't lost: it refused the request. Every other replica would refuse it too. Only ReplicaLost "
            "means "
            "that another one should be asked.",
        )
    if chunks[-1].finish_reason != "error" or "max_tokens is -1" not in (chunks[-1].error or ""):
        raise Mistake(
            f"the last chunk should say why: 'max_tokens is -1'; yours is {chunks[-1]}.",
            case=case,
            idea="The message of the exception tells the reader what to change: `str(error)`.",
        )


def _check_refused_late(attempt) -> None:
    late = "A's stream raises ValueError('max_tokens is -1') at its first chunk; B would do the same."
    other = "`A.stream(...)` raises TypeError('max_tokens is -1'); B would raise the same."
    moved = "A is lost after 2 chunks; `B.stream(...)` raises ValueError('max_tokens is -1'); C would raise the same."
    refusal = ValueError("max_tokens is -1")
    for case, replicas, num_asked in (
        (late, [FakeReplica(name, 0, "refuse") for name in "AB"], 1),
        (other, [FakeReplica(name, refuses=TypeError("max_tokens is -1")) for name in "AB"], 1),
        (moved, [FakeReplica("A", 2), FakeReplica("B", refuses=refusal), FakeReplica("C", refuses=refusal)], 2),
    ):
        try:
            chunks = _relayed(attempt, replicas, case, want=TOKENS[: 2 * (num_asked - 1)])
        except (ValueError, TypeError) as error:
            raise Mistake(
                f"your code raised {type(error).__name__}.",
                case=case,
                idea="The reader gets it as a chunk, whatever its type is, and wherever it was raised: around the call "
                "of `stream` and the loop over the chunks, `except Exception as error`.",
            ) from None
        if sum(bool(each.requests) for each in replicas) != num_asked:
            raise Mistake(
                f"replica {replicas[num_asked].name} was asked too.",
                case=case,
                idea=f"{replicas[num_asked - 1].name} wasn't lost: it refused the request, and so would every other.",
            )
        if chunks[-1].finish_reason != "error" or "max_tokens is -1" not in (chunks[-1].error or ""):
            raise Mistake(
                f"the last chunk should say why: 'max_tokens is -1'; yours is {chunks[-1]}.",
                case=case,
                idea="The message of the exception tells the reader what to change: `str(error)`.",
            )


def _check_error_chunk(attempt) -> None:
    case = "A yields five chunks, and Chunk([], 'error', 'out of memory')."
    b = FakeReplica("B")
    chunks = _relayed(attempt, [FakeReplica("A", last=Chunk([], "error", "out of memory")), b], case)
    if chunks[-1].error != "out of memory" or b.requests:
        raise Mistake(
            f"the last chunk should be A's own; yours is {chunks[-1]}.",
            case=case,
            idea="A chunk with a reason is the last one, whatever the reason is. A still runs; it wasn't lost.",
        )


def _check_seed(attempt) -> None:
    for given in ({"seed": 12}, {"seed": 0}, {}, {"seed": None}):
        request = {"prompt": [5, 6], "max_tokens": 5, **given}
        case = f"the request is {request}; A is lost after 2 chunks, B is fine."
        a, b = FakeReplica("A", 2), FakeReplica("B")
        _relayed(attempt, [a, b], case, request)
        seeds = [each.get("seed") for each in (*a.requests, *b.requests)]
        if given.get("seed") is not None and seeds != [given["seed"]] * 2:
            raise Mistake(
                f"both replicas should be asked with the seed {given['seed']}; yours were {seeds}.",
                case=case,
                idea="The reader has chosen this seed, and gets the same tokens whenever it asks with it."
                if given["seed"]
                else "0 is a seed too: test `is None`.",
            )
        if any(isinstance(seed, bool) or not isinstance(seed, int) for seed in seeds) or seeds[0] != seeds[1]:
            raise Mistake(
                f"both replicas should be asked with the same seed, an int; yours were {seeds}.",
                case=case,
                idea="Without a seed, each replica draws one of its own, and B goes on with other random numbers than "
                "A "
                "would have. Draw one before the first replica is asked: `random.getrandbits(31)`.",
            )


def _check_drawn_seeds(attempt) -> None:
    request = {"prompt": [5, 6], "max_tokens": 5}
    case = f"eight times the request {request}, each time with a replica that doesn't fail."
    replica = FakeReplica("A")
    for _ in range(8):
        _relayed(attempt, [replica], case, request)
    seeds = [each.get("seed") for each in replica.requests]
    if len(set(seeds)) == 1:
        raise Mistake(
            f"each request should get a seed of its own; yours is {seeds[0]} every time.",
            case=case,
            idea="With the same seed, everyone who sends this prompt gets the same completion. Draw one: "
            "`random.getrandbits(31)`.",
        )


def _check_other_streams(attempt) -> None:
    case = "A serves three other streams: its load is 3. It doesn't fail."
    replica = FakeReplica("A", load=3)
    list(islice(_start(attempt, [replica], case), 40))
    for when, load, want in (("when it is asked", replica.log[0][1], 4), ("afterwards", replica.load, 3)):
        if load != want:
            raise Mistake(
                f"{when}, its load should be {want}; it is {load}.",
                case=case,
                idea="Other streams count too: `replica.load += 1` before, `replica.load -= 1` afterwards.",
            )
    case = "A serves this stream; after the first chunk, another stream begins on A and goes on. A doesn't fail."
    replica = FakeReplica("A")
    reader = _start(attempt, [replica], case)
    next(reader)
    replica.load += 1
    list(islice(reader, 40))
    if replica.load != 1:
        raise Mistake(
            f"afterwards, its load should be 1; it is {replica.load}.",
            case=case,
            idea="Other streams change the load too, so don't put back what it was before: `replica.load -= 1`.",
        )


class _AskedAfter(FakeReplica):
    """Notes, when it is asked, the load of the replica before it and whether that one's streams are closed."""

    def stream(self, request):
        self.found = self.before.load, all(stream.is_closed for stream in self.before.streams)
        return super().stream(request)


def _check_over_before_the_next(attempt) -> None:
    case = "A is lost after 2 chunks; B notes A's load when it is asked, and whether A's stream is closed."
    a, b = FakeReplica("A", 2), _AskedAfter("B")
    b.before = a
    _relayed(attempt, [a, b], case)
    if b.found[0] != 0:
        raise Mistake(
            f"when B is asked, the load of A should be 0; it is {b.found[0]}.",
            case=case,
            idea="This stream isn't on A any more. While B streams, A's load would keep other requests away from it. "
            "Lower it before the next replica is asked: in a `finally` inside the loop over replicas.",
        )
    if not b.found[1]:
        raise Mistake(
            "when B is asked, the stream of A is still open.",
            case=case,
            idea="A may still run, and compute the same tokens as B. Close its stream before the next replica is "
            "asked: in a `finally` inside the loop over replicas.",
        )


def _check_reader_leaves(attempt) -> None:
    case = "one replica; the reader takes two chunks and leaves (`close()` of your generator)."
    replica = FakeReplica("A")
    reader = _start(attempt, [replica], case)
    next(reader), next(reader)
    _close(reader, case)
    _check_nothing_left([replica], case)


def _close(reader, case: str) -> None:
    """What Python does when the reader leaves."""
    try:
        getattr(reader, "close", lambda: None)()
    except RuntimeError as error:
        raise Mistake(
            f"closing your generator raised RuntimeError: {error}.",
            case=case,
            idea="`close` raises GeneratorExit at the `yield`. Don't catch it (a bare `except:` does), and yield "
            "nothing after it.",
        ) from None
