"""The exercises and the quiz of lesson 15: which replica, a stream that goes on elsewhere, the core of a balancer,
the two cuts of a matrix, and the sum over all workers.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_15.cutting import check_cut_linear
from lessons_lib.checks.lesson_15.going_on import check_request_to_go_on
from lessons_lib.checks.lesson_15.quiz import QUIZ
from lessons_lib.checks.lesson_15.reducing import check_all_reduce
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
            "Write it for one replica that is never lost: five lines. Then ask what each line would have to do if the "
            "replica were lost exactly there, and which lines must run whatever happens.",
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
            "random.getrandbits(31)}`.",
        ),
        points=3,
    ),
    Exercise(
        id="15.4",
        title="the two cuts of a matrix",
        reference="lessons_lib.serving.tensor_parallel:cut_linear",
        test=check_cut_linear,
        hints=(
            "Write down the shapes for a weight of [4, 6] and two processes, and multiply by an x of six elements. "
            "Then do it once more with a bias of four ones: where does a 2 come out?",
            "The first dimension of the weight are its outputs: `colwise` cuts there, `rowwise` cuts the second one. "
            "Results of a column cut stand side by side, so the bias is cut as the outputs are. Results of a row cut "
            "are added up, so a bias that every process adds is counted as often as there are processes. A slice is "
            "a view of the whole tensor and keeps it in memory.",
            "`size, rest = divmod(weight.shape[dim], world_size)`; ValueError if `rest`; `own = slice(rank * size, "
            "(rank + 1) * size)`. Colwise: `weight[own].clone(), None if bias is None else bias[own].clone()`. "
            "Rowwise: `weight[:, own].clone(), None if bias is None or rank > 0 else bias.clone()`.",
        ),
    ),
    Exercise(
        id="15.5",
        title="the sum over all workers",
        reference="lessons_lib.serving.all_reduce:all_reduce",
        test=check_all_reduce,
        hints=(
            "Two workers first. Each sends half of its tensor and gets half of the other's. What can it compute then, "
            "and what does it lack? Now the same with three workers and thirds.",
            "Two rounds. In the first, each part is added up in *one* worker; in the second, every worker gets the "
            "finished parts. In a ring, each worker sends only to the one on its right and receives only from the one "
            "on its left, and a round has N - 1 steps. Start by sending part `rank`; in the next step, send the part "
            "that you have just received and added to. After N - 1 steps, the part that you added to last is "
            "complete. The second round goes on the same way, but what arrives *replaces* the part. "
            "`tensor.flatten().tensor_split(N)` makes N parts that differ by at most one element.",
            "`parts = list(tensor.flatten().tensor_split(size))`. First round, for `step in range(size - 1)`: "
            "`worker.send(right, parts[(rank - step) % size])`; then `own = (rank - step - 1) % size` and `parts[own] "
            "= parts[own] + worker.receive(left)`. Second round, the same range: `worker.send(right, parts[(rank + 1 - "
            "step) % size])`; `parts[(rank - step) % size] = worker.receive(left)`. At the end: "
            "`torch.cat(parts).view(tensor.shape)`. (`+=` would change the tensor of the caller: a part is a view.)",
        ),
        points=3,
        time_limit=10.0,
    ),
]
