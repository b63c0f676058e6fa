"""The exercises and the quiz of lesson 16: the two cuts of a matrix, the sum over all workers, and a layer in
parts.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_16.cutting import check_cut_linear
from lessons_lib.checks.lesson_16.layers import check_cut_layer
from lessons_lib.checks.lesson_16.quiz import QUIZ
from lessons_lib.checks.lesson_16.reducing import check_all_reduce

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="16.1",
        title="the two cuts of a matrix",
        reference="lessons_lib.serving.tensor_parallel:cut_linear",
        test=check_cut_linear,
        hints=(
            "Write down the shapes for a weight of [4, 6] and two processes, and multiply by an x of six elements. "
            "Then do it once more with a bias of four ones: where does a 2 come out?",
            "The first dimension of the weight are its outputs: `colwise` cuts there, `rowwise` cuts the second one. "
            "Results of a column cut stand side by side, so the bias is cut as the outputs are. Results of a row cut "
            "are added up, so a bias that every process adds is counted as often as there are processes. One that adds "
            "none returns None or zeros. A slice is a view of the whole tensor and keeps it in memory.",
            "`size, rest = divmod(weight.shape[dim], world_size)`; ValueError if `rest`; `own = slice(rank * size, "
            "(rank + 1) * size)`. Colwise: `weight[own].clone(), None if bias is None else bias[own].clone()`. "
            "Rowwise: `weight[:, own].clone(), None if bias is None or rank > 0 else bias.clone()`.",
        ),
    ),
    Exercise(
        id="16.2",
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
            "complete. The second round goes on the same way, but what arrives *replaces* the part.",
            "`parts = list(tensor.flatten().tensor_split(size))`. First round, for `step in range(size - 1)`: "
            "`worker.send(right, parts[(rank - step) % size])`; then `own = (rank - step - 1) % size` and `parts[own] "
            "= parts[own] + worker.receive(left)`. Second round, the same range: `worker.send(right, parts[(rank + 1 - "
            "step) % size])`; `parts[(rank - step) % size] = worker.receive(left)`. At the end: "
            "`torch.cat(parts).view(tensor.shape)`. (`+=` would change the tensor of the caller: a part is a view.)",
        ),
        points=3,
        time_limit=10.0,
    ),
    Exercise(
        id="16.3",
        title="a layer in parts",
        reference="lessons_lib.serving.cut_layer:cut_layer",
        test=check_cut_layer,
        hints=(
            "Go through the two formulas from the inside out. For each matrix: is its input whole in every process, or "
            "does each process have only its own part? And is its output complete, or a part of a sum?",
            "q, k, v, gate and up get a whole input: cut them by columns. o and down get what this process has "
            "computed: cut them by rows. Their outputs are parts of a sum, so a hook on each of the two calls "
            "`all_reduce`. The layer adds the residual after that, once in each process.",
            "For each matrix: `weight, bias = cut_linear(linear.weight, linear.bias, cut, rank, world_size)`; "
            "`linear.weight = torch.nn.Parameter(weight, requires_grad=False)`; `linear.bias = None if bias is None "
            "else torch.nn.Parameter(bias, requires_grad=False)`. For o_proj and down_proj: "
            "`linear.register_forward_hook(lambda module, inputs, output: all_reduce(output))`.",
        ),
    ),
]
