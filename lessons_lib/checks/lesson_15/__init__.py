"""The exercises and the quiz of lesson 15: which replica, a stream that goes on elsewhere, the core of a balancer, and
the two cuts of a matrix.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_15.cutting import check_cut_linear
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
            "A loop over replicas around a loop over chunks. Two things leave the inner loop without a reason: "
            "ReplicaLost, "
            "and the end of the stream. Both mean the same, so let both reach the same line below it.",
            "Keep a list of remaining replicas, and take the chosen one out of it (`pop`). Raise its load, then "
            "`try:` ask "
            "it, and for each chunk: note its tokens, yield it, return if it has a reason. `except ReplicaLost: "
            "pass`. Any "
            "other Exception becomes an error chunk, and you return. `finally:` lower the load and close the stream, "
            "if there "
            "is one. Below: call `request_to_go_on` with all tokens so far. None means that only the reason is "
            "missing.",
            "`replica, stream = remaining.pop(choose(remaining)), None`; `replica.load += 1`; in `try`: `stream = "
            "replica.stream(asked)` and the loop; in `finally`: `replica.load -= 1` and `if stream is not None: "
            "stream.close()`. The outer loop: `while remaining and max_moves >= 0`, with `max_moves -= 1` after each "
            "replica. `asked` is the request itself at first, then `request_to_go_on(request, token_ids)`. The seed "
            "comes "
            'before all that: `if request.get("seed") is None: request = {**request, "seed": random.getrandbits(31)}`.',
        ),
        points=3,
    ),
    Exercise(
        id="15.4",
        title="the two cuts of a matrix",
        reference="lessons_lib.serving.tensor_parallel:cut_linear",
        test=check_cut_linear,
        hints=(
            "Which dimension of the weight are the outputs, and which the inputs? `colwise` cuts the outputs, "
            "`rowwise` the "
            "inputs. For the bias, think of what is done with the results of all processes: put side by side, or "
            "added up.",
            "`size = weight.shape[dim] // world_size`, with dim 0 for colwise and 1 for rowwise; the part goes from "
            "`rank * "
            "size` to `(rank + 1) * size`. Colwise: cut the bias at the same places. Rowwise: the first process has "
            "the "
            "whole bias, the others None. A slice is a view: `.clone()`.",
            "`size, rest = divmod(weight.shape[dim], world_size)`; ValueError if `rest`; `own = slice(rank * size, "
            "(rank + 1) "
            "* size)`. Colwise: `weight[own].clone(), None if bias is None else bias[own].clone()`. Rowwise: "
            "`weight[:, "
            "own].clone(), None if bias is None or rank > 0 else bias.clone()`.",
        ),
    ),
]
