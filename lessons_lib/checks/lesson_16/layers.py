"""16.3, `cut_layer`: what is left in the layers of all ranks, and what they compute together."""

import copy
import functools
import gc
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, kind, mistakes
from lessons_lib.checks.diagnosis.kernels import near
from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_16.together import together
from lessons_lib.serving.all_reduce import all_reduce
from lessons_lib.serving.tensor_parallel import CUTS

CLASSES = "what changed in the modules' classes"


class Case(NamedTuple):
    world_size: int
    has_bias: bool
    dtype: torch.dtype = torch.float32


def cases() -> Iterator[Case]:
    for world_size, has_bias in ((2, False), (2, True), (4, True), (1, True)):
        yield Case(world_size, has_bias)
    yield Case(2, False, torch.bfloat16)


@functools.cache
def layer_and_angles(case: Case) -> Any:
    """A whole layer, and a function from its input to the angles of its positions."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=24, intermediate_size=40, head_dim=4, num_attention_heads=8,
        num_key_value_heads=4, attention_bias=case.has_bias, mlp_bias=case.has_bias,
        attn_implementation="sdpa",
    )  # fmt: skip
    layer = LlamaDecoderLayer(config, layer_idx=0).eval()
    generator = torch.Generator().manual_seed(2)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.dim() > 1 else 1)
        parameter.requires_grad_(False)
    rotary = LlamaRotaryEmbedding(config)
    return layer.to(case.dtype), lambda hidden: rotary(hidden, torch.arange(hidden.shape[1])[None])


def run(attempt: Any, case: Case, watch: Watch) -> None:
    whole, angles_of = layer_and_angles(case)
    computing: dict[int, Any] = {}  # rank -> the sum with the others, while they compute

    def summing(rank: int) -> Any:
        def all_reduce(tensor: Any) -> torch.Tensor:
            if rank not in computing:
                idea = "The results of a forward pass are added up, not weights. A hook is called in every pass."
                raise Mistake("your code called `all_reduce` while it cut the layer.", idea=idea)
            if not isinstance(tensor, torch.Tensor):
                idea = "`self_attn` returns a tuple, and a hook's inputs are one. A matrix returns a tensor."
                raise Mistake(f"`all_reduce` takes a tensor; yours got a {type(tensor).__name__}.", idea=idea)
            return computing[rank](tensor)

        all_reduce.__qualname__ = "all_reduce"  # in the message of a TypeError
        return all_reduce

    parts = []
    for rank in range(case.world_size):
        part = copy.deepcopy(whole)
        done = f"`cut_layer(layer, {rank}, {case.world_size}, all_reduce)`"
        replaced: list[str] = []
        with same_classes(part, replaced):
            watch(
                done, attempt, part, rank, case.world_size, summing(rank),
                returns=functools.partial(other_layer, part),
                look=lambda: look_at(part, whole, case.world_size),
            )  # fmt: skip
        watch(done, int, look=lambda: {CLASSES: Shown(", ".join(replaced) or "nothing")})
        parts.append(part)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        biases = [bias.float() for _, bias in (matrix_of(part, name) for part in parts) if bias is not None]
        total = sum(biases, torch.zeros(24))
        watch("all ranks have cut their layers", int, look=lambda: {f"the sum of their biases of {name}": total})
    for shape in ((1, 5), (3, 1)):
        hidden = torch.randn(*shape, 24, generator=torch.Generator().manual_seed(shape[0])).to(case.dtype)
        sums: list[list[list[int]]] = [[] for _ in parts]

        def compute(layer: Any) -> Any:
            with torch.no_grad():
                got = layer(hidden.clone(), position_embeddings=angles_of(hidden))
            return got[0] if isinstance(got, tuple) else got

        def work(worker: Any) -> Any:
            def counted(tensor: torch.Tensor) -> torch.Tensor:
                sums[worker.rank].append(list(tensor.shape))
                return all_reduce(tensor, worker)

            computing[worker.rank] = counted
            got = compute(parts[worker.rank])
            if case.dtype != torch.float32:
                return Shown(kind(got))
            return near(got, want) if kind(got) == kind(want) else got

        want = compute(whole)

        def why_stuck(places: str) -> tuple[str, str]:
            counts = [*map(len, sums)]
            what = f"no process can go on. Calls of `all_reduce` so far, in order of rank: {counts}."
            return what, "Every rank must make the same sums, in the same order."

        results: list[Any] = []

        def look() -> dict[str, Any]:
            most = max(sums, key=len)
            shown = f"{len(most)}, of the shapes {', '.join(map(str, most[:4]))}{', …' * (len(most) > 4)}"
            is_fine = len(most) == 2 or (len(parts) == 1 and len(most) < 2)
            of_ranks = {f"the result of rank {rank}": got for rank, got in enumerate(results)}
            return {"the number of sums": Shown("2" if is_fine else shown if most else "0")} | of_ranks

        done = f"a forward pass with {shape[0]} x {shape[1]} tokens"
        watch(done, lambda: results.extend(together(work, len(parts), why_stuck)[0]), look=look)
        computing.clear()


def other_layer(part: Any, got: Any) -> Any:
    return Shown("another layer" if isinstance(got, torch.nn.Module) and got is not part else "nothing, or the layer")


@contextmanager
def same_classes(part: Any, replaced: list[str]) -> Iterator[None]:
    """Put the functions of the modules' classes back, since others use them too, and note which were replaced."""
    classes = {each for module in part.modules() for each in type(module).__mro__ if each is not object}
    before = {each: dict(vars(each)) for each in classes}
    try:
        yield
    finally:
        for each, functions in before.items():
            for name, value in list(vars(each).items()):
                if callable(value) and functions.get(name) is not value:
                    replaced.append(f"{each.__name__}.{name}")
                    setattr(each, name, functions[name]) if name in functions else delattr(each, name)


def look_at(part: Any, whole: Any, world_size: int) -> dict[str, Any]:
    """The part of each matrix, and whatever must stay as it was."""
    now, config = part.self_attn.config.to_dict(), whole.self_attn.config.to_dict()
    changed = [f"{name}: {value}" for name, value in now.items() if value != config.get(name)]
    seen: dict[str, Any] = {"what changed in the config": Shown(", ".join(changed) or "nothing")}
    kept, in_memory = [], list(tensors_in(part))
    for name, cut in CUTS.items():
        matrix, (weight, bias) = whole.get_submodule(name), matrix_of(part, name)
        if cut == "rowwise" and (bias is None or len(bias) == len(matrix.weight)):
            bias = Shown(f"None or a tensor [{len(matrix.weight)}]")
        seen[f"the shape of {name}"] = list(weight.shape)
        seen[f"the shape of the bias of {name}"] = Shown(
            bias if bias is None or isinstance(bias, Shown) else [*bias.shape]
        )
        seen[f"the weight of {name}"], seen[f"the bias of {name}"] = weight, bias
        if weight.untyped_storage().nbytes() > weight.nbytes:
            kept.append(f"{name}, of which the part is a view")
        elif world_size > 1 and any(torch.equal(each, matrix.weight) for each in in_memory):
            kept.append(name)
    seen["the whole matrices that the layer still holds"] = Shown(", ".join(kept) or "none")
    return seen


def matrix_of(part: Any, name: str) -> tuple[Any, Any]:
    """A matrix and its bias, also if another module took the place of the layer's."""
    module = part.get_submodule(name)
    own = [each.data for each in (*module.parameters(), *module.buffers())]
    return next((each for each in own if each.dim() == 2), None), next((each for each in own if each.dim() == 1), None)


def tensors_in(part: Any) -> Iterator[torch.Tensor]:
    """All tensors that a module keeps in memory: in its attributes, its modules, and its hooks."""
    holders = torch.nn.Module | dict | list | tuple | set | functools.partial | types.MethodType | types.CellType
    left, seen = [part], set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            yield each.detach()
        elif isinstance(each, types.FunctionType):
            left += [each.__closure__, each.__defaults__, each.__kwdefaults__]
        elif isinstance(each, holders):
            left += gc.get_referents(each)


def tell(case: Case) -> str:
    dtype = "" if case.dtype == torch.float32 else " in bfloat16"
    return f"a layer {'with' if case.has_bias else 'without'} biases{dtype}, all ranks of {case.world_size}."


MISTAKES = """
Each rank has a part of its own: `cut_linear` takes the rank.
~ cut, rank, world_size => cut, 0, world_size
There may be any number of processes: pass `rank` and `world_size` on to `cut_linear`.
~ cut, rank, world_size => cut, rank % 2, 2
`cut_linear` takes first the rank, then the number of processes.
~ cut, rank, world_size => cut, world_size, rank
`Parameter(None)` is an empty tensor, not None. Where `cut_linear` returns no bias, the bias is None.
~ None if bias is None else torch.nn => torch.nn
A module's weight and bias must be Parameters: `torch.nn.Parameter(weight, requires_grad=False)`.
~ torch.nn.Parameter(weight, requires_grad=False) => weight
Attention and the MLP each end with a sum over all processes, and the norm before the MLP needs the whole result of
attention: one sum isn't enough. (In the layer's output, the residual would count for every process.)
- for linear in second: => for linear in second[:1]:
or - for linear in second: => for linear in second[1:]:
or - for linear in second:
- linear.register_forward_hook
+ layer.register_forward_hook(lambda module, inputs, output: all_reduce(output))
A matrix returns a tensor, so a hook on it returns a tensor, too, and no tuple.
~ all_reduce(output) => (all_reduce(output),)
A function looks up its variables when it is called, and by then the loop is over: both matrices use the last one's.
Bind them: `lambda …, whole=whole: …`.
- for linear in second:
- linear.register_forward_hook
+ for linear in second:
+     whole = linear.forward
+     linear.forward = lambda hidden: all_reduce(whole(hidden))
What a hook returns takes the place of the module's output. Yours returns None, so the output stays.
~ all_reduce(output) => all_reduce(output) is None or None
A hook is called with three arguments: the module, its inputs, and its output.
~ lambda module, inputs, output => lambda module, output
or ~ lambda module, inputs, output: all_reduce(output) => all_reduce
`self_attn` returns a tuple, the result and the attention weights, and the layer takes the first. A hook on it must
return a tuple of two as well.
- for linear in second:
+ attention.register_forward_hook(lambda module, inputs, output: all_reduce(output[0]))
+ for linear in second[1:]:
The layer is changed in place: the model goes on using its own layer. No copy, and nothing to return.
- attention, mlp
+ import copy
+ layer = copy.deepcopy(layer)
+ ...
- for linear in second:
- linear.register_forward_hook
+ return layer
"""

INPUTS = {
    "colwise": "q, k, v, gate and up get the norm's output, which is whole in every process. Each process can compute "
    "some of their outputs by itself: cut them by columns.",
    "rowwise": "o_proj and down_proj get what this process has computed: its own heads, its own elements of the MLP. "
    "Cut them by rows.",
}
HOLDS = (
    "Then no memory is free: each process would hold the whole model. No attribute and no hook may keep a whole matrix."
)
SUMS = (
    "Each process has a part of what o_proj and down_proj return. Add up these two, each once: the results of a column "
    "cut are complete as they are, and the row cut takes this process's part of them."
)
RESULT = (
    "Each of the two sums takes the place of what o_proj or down_proj has returned, as it is. All else stays: the "
    "norms, and the residual, which each process adds by itself."
)
CONFIG = (
    "All layers and the cache share one config, and it describes the whole model. With the next layer it would be "
    "changed once more. Only the matrices and their sums change."
)
CLASS = (
    "Every layer of the model has modules of this class, and with the next layer it would be changed once more. A hook "
    "belongs to one module."
)


def about() -> Iterator[tuple[str, str]]:
    yield from {"the whole matrices that the layer still holds": HOLDS, "the number of sums": SUMS}.items()
    yield from {"what changed in the config": CONFIG, CLASSES: CLASS}.items()
    for name, cut in CUTS.items():
        yield f"the shape of {name}", INPUTS[cut]
        yield f"the weight of {name}", "Each rank has a part of its own, from your `cut_linear`."
        for what in ("the bias", "the shape of the bias"):
            yield (
                f"{what} of {name}",
                "`cut_linear` takes the layer's bias, and returns this process's with the weight.",
            )
        sentence = "The results of a row cut are added up, so its bias must count once"
        yield f"the sum of their biases of {name}", f"{sentence}: assign what `cut_linear` returns, also if it is None."
    for rank in range(4):
        yield f"the result of rank {rank}", RESULT


TASK = Task(
    reference="lessons_lib.serving.cut_layer:cut_layer",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    about=dict(about()),
)

EXERCISE = TASK.exercise(
    id="16.3",
    title="a layer in parts",
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
)
