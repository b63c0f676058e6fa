"""Judges the seeds of 15.3: every replica of a stream gets the same one, and each stream its own."""

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_15.fake_replica import FakeReplica
from lessons_lib.checks.lesson_15.relayed_chunks import relayed


def check_seed(attempt) -> None:
    for given in ({"seed": 12}, {"seed": 0}, {}, {"seed": None}):
        request = {"prompt": [5, 6], "max_tokens": 5, **given}
        case = f"the request is {request}; A is lost after 2 chunks, B is fine."
        a, b = FakeReplica("A", 2), FakeReplica("B")
        relayed(attempt, [a, b], case, request)
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
                idea="It is the same one, but a seed is an int: `random.getrandbits(31)`."
                if seeds[0] is not None and seeds[0] == seeds[1]
                else "Without a seed, each replica draws one of its own, and B goes on with other random numbers than "
                "A would have. Draw one before the first replica is asked: `random.getrandbits(31)`.",
            )


def check_drawn_seeds(attempt) -> None:
    request = {"prompt": [5, 6], "max_tokens": 5}
    case = f"eight times the request {request}, each time with a replica that doesn't fail."
    replica = FakeReplica("A")
    for _ in range(8):
        relayed(attempt, [replica], case, request)
    seeds = [each.get("seed") for each in replica.requests]
    if len(set(seeds)) == 1:
        raise Mistake(
            f"each request should get a seed of its own; yours is {seeds[0]} every time.",
            case=case,
            idea="With the same seed, everyone who sends this prompt gets the same completion. Draw one: "
            "`random.getrandbits(31)`.",
        )
