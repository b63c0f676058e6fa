"""Judges 16.3, `cut_layer`, with the layers of a small model, one in each of several threads."""

import copy
import functools
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from lessons_lib.checks.exercise import Mistake, call, current_case
from lessons_lib.serving.all_reduce import all_reduce
from lessons_lib.serving.workers import Deadlock, Worker, run_workers

HEAD_DIM = 4
COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")
Together = dict[int, Callable[[torch.Tensor], torch.Tensor]]  # rank -> the sum with the others, while they compute


def check_cut_layer(attempt) -> None:
    for world_size, has_bias in ((2, False), (2, True), (4, True), (1, True)):
        layer, angles_of = _layer(2 if world_size < 4 else 4, has_bias)
        case = f"a layer {'with biases' if has_bias else 'without biases'}, all ranks of {world_size}"
        together: Together = {}
        parts: list[Any] = []
        for rank in range(world_size):
            part = _part(attempt, layer, rank, world_size, together, f"{case}; rank {rank}.")
            _check_matrices(part, layer, world_size, f"{case}; rank {rank}.")
            if rank:
                _check_own_part(parts[-1], part, rank, f"{case}.")
            if world_size > 1:
                _check_memory(part, layer, f"{case}; rank {rank}.")
            parts.append(part)
        for shape in ((1, 5), (3, 1)):
            second = " in the second forward pass" if shape == (3, 1) else ""
            _check_forward(parts, layer, angles_of, shape, together, f"{case}; {shape[0]} x {shape[1]} tokens{second}.")
    _check_half_precision(attempt)


def _layer(num_kv_heads: int, has_bias: bool) -> tuple[Any, Callable[[torch.Tensor], Any]]:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=24, intermediate_size=40, head_dim=HEAD_DIM, num_attention_heads=2 * num_kv_heads,
        num_key_value_heads=num_kv_heads, attention_bias=has_bias, mlp_bias=has_bias, attn_implementation="sdpa",
    )  # fmt: skip
    layer = LlamaDecoderLayer(config, layer_idx=0).eval()
    generator = torch.Generator().manual_seed(num_kv_heads)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.dim() > 1 else 1)
        parameter.requires_grad_(False)
    rotary = LlamaRotaryEmbedding(config)
    return layer, lambda hidden: rotary(hidden, torch.arange(hidden.shape[1])[None])


def _part(attempt, layer, rank: int, world_size: int, together: Together, case: str):
    part = copy.deepcopy(layer)

    def sum_over_all(tensor: torch.Tensor) -> torch.Tensor:
        if rank not in together:
            raise Mistake(
                "your code called `all_reduce` while it cut the layer.",
                case=case,
                idea="The results of a forward pass are added up. A hook is called in every one of them.",
            )
        if not isinstance(tensor, torch.Tensor):
            raise Mistake(
                f"`all_reduce` takes a tensor; yours got a {type(tensor).__name__}.",
                case=case,
                idea="`self_attn` returns a tuple: the result and the attention weights. Its matrices return tensors.",
            )
        return together[rank](tensor)

    config = copy.deepcopy(part.self_attn.config.to_dict())
    with _same_classes(part, case):
        got = call(attempt, part, rank, world_size, sum_over_all, case=case)
    for name, now in part.self_attn.config.to_dict().items():
        if now != (value := config.get(name)):
            raise Mistake(
                f"your code changed the model's config: `{name}` was {value} and is {now}.",
                case=case,
                idea="All layers and the cache share one config, and it describes the whole model. With the next layer "
                "it would be changed once more. Only the matrices and their sums change.",
            )
    if isinstance(got, torch.nn.Module) and got is not part:
        raise Mistake(
            "your code returned another layer; the one that it was given should be changed.",
            case=case,
            idea="The model goes on using its own layer: change that in place. No copy, and nothing to return.",
        )
    return part


@contextmanager
def _same_classes(part, case: str) -> Iterator[None]:
    """Refuse an attempt that replaces a function of the modules' classes, and put it back: others use them too."""
    classes = {each for module in part.modules() for each in type(module).__mro__ if each is not object}
    before = {each: dict(vars(each)) for each in classes}
    try:
        yield
    finally:
        changed = []
        for each in classes:
            for name, value in list(vars(each).items()):
                if callable(value) and before[each].get(name) is not value:
                    changed.append(f"{each.__name__}.{name}")
                    if name in before[each]:
                        setattr(each, name, before[each][name])
                    else:
                        delattr(each, name)
    if changed:
        raise Mistake(
            f"your code changed a class: it replaced `{changed[0]}`.",
            case=case,
            idea="Every layer of the model has modules of this class, and with the next layer it would be changed once "
            "more. Change the module alone: a hook belongs to one module.",
        )


def _check_memory(part, layer, case: str) -> None:
    tensors = list(_tensors_in(part))
    for name in (*COLUMNS, *ROWS):
        whole = layer.get_submodule(name).weight
        if any(tensor.shape == whole.shape and torch.equal(tensor, whole) for tensor in tensors):
            raise Mistake(
                f"the layer still holds the whole weight of {name}, next to its part.",
                case=case,
                idea="Then no memory is free, and each process holds the whole model. Is it kept in an attribute, or "
                "in a hook? Leave only the parts.",
            )


def _tensors_in(part) -> Iterator[torch.Tensor]:
    """All tensors that a module keeps in memory: in its attributes, its modules, and its hooks."""
    left, seen = [part], set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            yield each.detach()
        elif isinstance(each, torch.nn.Module):
            left += vars(each).values()
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, (list, tuple, set)):
            left += each
        elif isinstance(each, functools.partial):
            left += [each.func, each.args, each.keywords]
        elif isinstance(each, types.MethodType):
            left += [each.__func__, each.__self__]
        elif isinstance(each, types.FunctionType):
            left += [each.__defaults__, each.__kwdefaults__]
            for cell in each.__closure__ or ():
                with suppress(ValueError):  # nothing in it yet
                    left.append(cell.cell_contents)


def _check_half_precision(attempt) -> None:
    layer, angles_of = _layer(2, False)
    layer = layer.bfloat16()
    case = "a layer in bfloat16, without biases, all ranks of 2; 1 x 3 tokens."
    together: Together = {}
    parts = [_part(attempt, layer, rank, 2, together, case) for rank in range(2)]
    hidden = torch.randn(1, 3, 24, generator=torch.Generator().manual_seed(0)).bfloat16()
    angles, summed = angles_of(hidden), set()

    def work(worker: Worker):
        def noted(tensor: torch.Tensor) -> torch.Tensor:
            summed.add(tensor.dtype)
            return all_reduce(tensor, worker)

        together[worker.rank] = noted
        with torch.no_grad():
            got = parts[worker.rank](hidden.clone(), position_embeddings=angles)
        return got[0] if isinstance(got, tuple) else got

    current_case.text = case
    idea = (
        "Does your code sum in another type? What takes the place of a matrix's output has the type of that output: "
        "`.to(output.dtype)`."
    )
    try:
        results, _ = run_workers(work, 2)
    except RuntimeError as error:
        if not summed - {torch.bfloat16}:
            raise
        raise Mistake(f"the layer can't go on with your sum: RuntimeError: {error}.", case=case, idea=idea) from None
    finally:
        together.clear()
    if results[0].dtype != torch.bfloat16:
        raise Mistake(
            f"the layer should return bfloat16; yours returns {str(results[0].dtype)[6:]}.", case=case, idea=idea
        )


def _check_matrices(part, layer, world_size: int, case: str) -> None:
    for name in (*COLUMNS, *ROWS):
        linear, whole = part.get_submodule(name), layer.get_submodule(name)
        got = getattr(linear, "weight", None)
        outputs, inputs = whole.weight.shape
        want = [outputs // world_size, inputs] if name in COLUMNS else [outputs, inputs // world_size]
        if isinstance(got, torch.Tensor) and list(got.shape) != want:
            raise Mistake(
                f"{name} should have a weight of shape {want}; yours has {list(got.shape)}.",
                case=case,
                idea=_why_shape(name, got.shape, whole.weight.shape, world_size),
            )
        if isinstance(got, torch.Tensor) and got.untyped_storage().nbytes() > got.numel() * got.element_size():
            raise Mistake(
                f"the weight of {name} is a view: the whole matrix stays in memory.",
                case=case,
                idea="Then each process holds the whole model. `cut_linear` returns new tensors.",
            )
        bias = getattr(linear, "bias", None)
        if isinstance(bias, torch.Tensor) and len(bias) != want[0]:
            raise Mistake(
                f"{name} computes {want[0]} outputs in this process; its bias has {len(bias)} elements.",
                case=case,
                idea="`cut_linear` returns the bias of this process, too."
                if len(bias)
                else "`Parameter(None)` is an empty tensor, not None. Where `cut_linear` returns no bias, the bias is "
                "None.",
            )
        if bias is None and whole.bias is not None and name in COLUMNS:
            raise Mistake(
                f"{name} should have a bias; yours has none.",
                case=case,
                idea="`cut_linear` returns it with the weight.",
            )
    norms = [linear.weight.shape for linear in (part.input_layernorm, part.post_attention_layernorm)]
    if norms != [layer.input_layernorm.weight.shape] * 2:
        raise Mistake("the norms should stay whole.", case=case, idea="A norm needs all elements of a token.")
    for name in ("input_layernorm", "post_attention_layernorm"):
        got, want = part.get_submodule(name).weight, layer.get_submodule(name).weight
        if not torch.equal(got, want):
            raise Mistake(
                f"the weight of {name} should stay as it is; its first element was {want[0].item():.3f}, and is "
                f"{got[0].item():.3f}.",
                case=case,
                idea="Every process computes the whole norm, and its results aren't added up.",
            )


def _check_own_part(before, part, rank: int, case: str) -> None:
    for name in (*COLUMNS, *ROWS):
        weights = [getattr(each.get_submodule(name), "weight", None) for each in (before, part)]
        if all(isinstance(weight, torch.Tensor) for weight in weights) and torch.equal(*weights):
            raise Mistake(
                f"ranks {rank - 1} and {rank} have the same part of {name}.",
                case=case,
                idea="Each rank has a part of its own: `cut_linear` takes the rank.",
            )


def _why_shape(name: str, got: torch.Size, whole: torch.Size, world_size: int) -> str:
    if got == whole:
        return "It was not cut. A layer has seven matrices: four in `self_attn`, three in `mlp`."
    dim = 0 if name in COLUMNS else 1
    if got[1 - dim] == whole[1 - dim] and 2 * got[dim] == whole[dim] and world_size > 2:
        return f"That is one of two parts; there are {world_size} processes here."
    if name in ROWS:
        return "Its inputs are what this process has computed: its own heads, or its own elements of the MLP."
    return "Its input, the norm's output, is whole in every process. What can each compute of its outputs by itself?"


def _check_forward(parts, layer, angles_of, shape: tuple[int, int], together: Together, case: str) -> None:
    current_case.text = case
    hidden = torch.randn(*shape, 24, generator=torch.Generator().manual_seed(shape[0]))
    angles, summed = angles_of(hidden), [[] for _ in parts]

    def compute(one) -> torch.Tensor:
        with torch.no_grad():
            got = one(hidden.clone(), position_embeddings=angles)
        return got[0] if isinstance(got, tuple) else got

    def work(worker: Worker) -> torch.Tensor:
        def counted(tensor: torch.Tensor) -> torch.Tensor:
            summed[worker.rank].append(tensor.shape)
            return all_reduce(tensor, worker)

        together[worker.rank] = counted
        return compute(parts[worker.rank])

    try:
        results, _ = run_workers(work, len(parts))
    except Deadlock:
        raise Mistake(
            f"no process can go on. Calls of `all_reduce` so far, in order of rank: {[*map(len, summed)]}.",
            case=case,
            idea="Every rank must make the same sums, in the same order.",
        ) from None
    except ValueError as error:
        if "to unpack" not in str(error) or "modeling_" not in traceback.extract_tb(error.__traceback__)[-1].filename:
            raise
        raise Mistake(
            f"the layer can't go on with what a hook returns: ValueError: {error}.",
            case=case,
            idea="`self_attn` returns a tuple, the result and the attention weights, and the layer takes the first. "
            "A hook on it must return a tuple of two as well.",
        ) from None
    finally:
        together.clear()
    for rank, got in enumerate(results):
        if got.shape != hidden.shape:
            raise Mistake(
                f"rank {rank} should return shape {list(hidden.shape)}; yours returned {list(got.shape)}.", case=case
            )
        if not torch.allclose(got, compute(layer), atol=1e-4, rtol=1e-4):
            raise Mistake(
                f"rank {rank} should return what the whole layer returns. Calls of `all_reduce` in this forward pass: "
                f"{len(summed[rank])}.",
                case=case,
                idea=_why_not_the_same(
                    parts, results, len(summed[rank]), layer.mlp.down_proj.bias is not None, is_second=shape == (3, 1)
                ),
            )
    most = max(summed, key=len)
    if len(most) > 2:
        raise Mistake(
            f"a forward pass should take two sums; yours takes {len(most)}, of the shapes "
            f"{', '.join(str(list(shape)) for shape in most[:4])}{', …' * (len(most) > 4)}.",
            case=case,
            idea="These are pieces of the two outputs. One call adds up a whole output: don't cut it."
            if sum(shape.numel() for shape in most) == 2 * hidden.numel()
            else "Between a column cut and the row cut after it, nothing has to be sent.",
        )


def _holders_of_a_row_bias(parts) -> int:
    """How many parts have a bias in o_proj, itself or in a module that took its place."""
    return sum(any(name.endswith("bias") for name, _ in part.self_attn.o_proj.named_parameters()) for part in parts)


def _why_not_the_same(parts, results: list[torch.Tensor], num_sums: int, has_bias: bool, is_second: bool) -> str:
    if num_sums == 0 and is_second:
        return "The first forward pass was right. Is something done only once? A hook must stay, for all passes."
    if num_sums == 0:
        return "Each process has only a part of every sum. Where do the parts have to be added up?"
    is_same = all(torch.allclose(got, results[0]) for got in results)
    if num_sums == 1:
        idea = (
            "One sum isn't enough. The results of attention and of the MLP are both sums over all processes, and the "
            "norm before the MLP needs the whole result of attention, so they can't be added up in one go."
        )
        if is_same:
            idea += (
                " Is it the layer's output that you add up? The residual is in it, and would count for each process."
            )
        return idea
    if num_sums > 2:
        return "The results of a column cut are complete as they are; only those of a row cut are added up, once."
    if not is_same:
        return (
            "The ranks return different tensors. What a hook returns takes the place of the module's output, and a row "
            "cut without a sum leaves each rank with its own part. Is it the *output* of each row cut that you add up, "
            "and does the hook return the sum as it is?"
        )
    if has_bias and len(results) == 2:
        return (
            "Without biases, your layer was right. The bias of a row cut must be added once over all processes. In "
            f"yours, {_holders_of_a_row_bias(parts)} of {len(parts)} processes have a bias in o_proj."
        )
    return (
        "Add up the outputs of the row cuts alone, and return the sum as it is. (In a sum with the residual, the "
        "residual counts for every process; the mean is only a part of the sum.)"
    )
