"""The exercises and the quiz of lesson 15: which replica, a stream that goes on elsewhere, the core of a balancer."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_15.going_on import check_request_to_go_on
from lessons_lib.checks.lesson_15.quiz import QUIZ
from lessons_lib.checks.lesson_15.relaying import check_relay
from lessons_lib.checks.lesson_15.routing import check_choose_replica

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="15.1",
        title="which replica",
        reference="lessons_lib.serving.router:choose_replica",
        test=check_choose_replica,
        hints=(
            "Two questions, one after the other. Which replica would save the most? And is it too busy? You need two "
            "replicas for that: the best one, and the least loaded one.",
            "Write a small function that counts the blocks that a replica was sent, and stops at the first one "
            "missing. "
            "`min` and `max` take a `key`; with a tuple as the key, later elements decide ties. The best one has the "
            "most "
            "matched blocks, then the smallest load, then the smallest `num_sent`.",
            "`by_load = sorted(range(len(replicas)), key=lambda i: (replicas[i].load, replicas[i].num_sent))`. The "
            "least "
            "loaded one is `by_load[0]`. `best = max(by_load, key=lambda i: num_matched(replicas[i]))`: `max` returns "
            "the "
            "first of several equal ones. Return `best` if its load is at most `replicas[by_load[0]].load + "
            "imbalance_limit`.",
        ),
    ),
    Exercise(
        id="15.2",
        title="a stream that goes on",
        reference="lessons_lib.serving.failover:request_to_go_on",
        test=check_request_to_go_on,
        hints=(
            "The new request differs from the old one in one field only. First find out which tokens the completion "
            "has in "
            "all; then whether it is complete.",
            'All tokens: those in `request.get("output_token_ids", ())`, then `token_ids`. Compare their number with '
            '`max_tokens`, and look at the last one, if there is one. `{**request, "name": value}` is a copy of a '
            "dict with "
            "one field changed.",
            '`output_token_ids = [*request.get("output_token_ids", ()), *token_ids]`; None if `len(output_token_ids) '
            ">= "
            'request["max_tokens"]`, or if `output_token_ids and output_token_ids[-1] in '
            'request.get("stop_token_ids", ())`; '
            'otherwise `{**request, "output_token_ids": output_token_ids}`. Before all that: ValueError if '
            '`request.get("n", 1) > 1`.',
        ),
        points=1,
    ),
    Exercise(
        id="15.3",
        title="the core of a balancer",
        reference="lessons_lib.serving.failover:relay",
        test=check_relay,
        hints=(
            "Take `stream_once` line by line: what would each have to do if the replica were lost exactly there, and "
            "which of them must run whatever happens?",
            "A loop over replicas around a loop over chunks. Two things leave the inner loop without a reason: "
            "ReplicaLost, and the end of the stream. Let both reach the same line below it, where "
            "`request_to_go_on` gets *all* tokens so far. Keep a list of remaining replicas, and take the chosen one "
            "out of it. What must happen in any case (load, close) is in `finally`, which also runs when the reader "
            "leaves: Python raises GeneratorExit at the `yield` then. So catch `Exception`, which doesn't include "
            "it.",
            "`replica, stream = remaining.pop(choose(remaining)), None`; `replica.load += 1`; in `try`: `stream = "
            "replica.stream(asked)` and the loop; in `finally`: `replica.load -= 1` and `if stream is not None: "
            "stream.close()`. The outer loop: `while remaining and max_moves >= 0`, with `max_moves -= 1` after each "
            "replica. `asked` is the request itself at first, then `request_to_go_on(request, token_ids)`. The seed "
            'comes before all that: `if request.get("seed") is None: request = {**request, "seed": '
            'random.getrandbits(31)}`. If `asked` is None, the reason is `"stop" if token_ids[-1] in '
            'request.get("stop_token_ids", ()) else "length"`.',
        ),
        points=3,
    ),
]
