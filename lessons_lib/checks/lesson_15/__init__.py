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
            "Answer two questions in this order. Which tokens does the completion have in all? And is it complete?",
            'The new request differs from the old one in one field only: `{**request, "name": value}` is a copy of a '
            "dict with one field changed. Compare the number of all tokens with `max_tokens`. `request.get(name) or "
            "()` is an empty tuple if the field is missing or None.",
            '`output_token_ids = [*(request.get("output_token_ids") or ()), *token_ids]`; None if '
            '`len(output_token_ids) >= request["max_tokens"]`; otherwise `{**request, "output_token_ids": '
            "output_token_ids}`.",
        ),
        points=1,
    ),
    Exercise(
        id="15.3",
        title="the core of a balancer",
        reference="lessons_lib.serving.failover:relay",
        test=check_relay,
        hints=(
            "What do you have to remember while the chunks pass by, so that another replica can go on? And how many "
            "ways are there in which the stream ends: which of them does `stream_once` show you, and how?",
            "A loop over replicas around a loop over the chunks of `stream_once`. If the inner loop ends by itself, "
            "the reader has had its last chunk. ReplicaLost leads to another round, and `request_to_go_on` gets the "
            "first request and *all* tokens so far. Keep a list of remaining replicas, and take the chosen one out "
            "of it. The outer loop ends for one of three reasons, and the last chunk depends on which: no token is "
            "missing, no replica is left, or no move is left. `with closing(stream_once(...)) as chunks` closes it "
            "when the reader leaves.",
            "Before the loop: a seed, `token_ids, remaining = [], list(replicas)`, and `asked = "
            "request_to_go_on(request, [])`. `while asked is not None and remaining and max_moves >= 0`: `replica = "
            "remaining.pop(choose(remaining))`; in `try`: for each chunk `token_ids += chunk.token_ids` and `yield "
            "chunk`, and `return` after the loop; in `except ReplicaLost`: `max_moves -= 1` and `asked = "
            "request_to_go_on(request, token_ids)`. Behind the outer loop: `Chunk([], "
            '"length")` if `asked` is None, otherwise `Chunk([], "error", "...")`.',
        ),
        points=3,
    ),
]
