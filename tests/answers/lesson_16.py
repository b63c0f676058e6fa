"""Answers to the exercises of lesson 16: what learners get wrong, and other ways to be right."""

import copy

from operator import itemgetter, methodcaller

import torch

from answers import Wrong
from lessons_lib.serving.all_reduce import all_reduce
from lessons_lib.serving.cut_layer import cut_layer
from lessons_lib.serving.tensor_parallel import cut_linear

# 16.1 cut_linear


def dims_swapped(weight, bias, cut, rank, world_size):
    part, _ = cut_linear(weight, None, "rowwise" if cut == "colwise" else "colwise", rank, world_size)
    return part, cut_linear(weight, bias, cut, rank, world_size)[1]


def always_columns(weight, bias, cut, rank, world_size):
    return cut_linear(weight, bias, "colwise", rank, world_size)


def transposed(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part.T.contiguous(), own


def every_nth_output(weight, bias, cut, rank, world_size):
    if cut == "colwise" and weight.shape[0] % world_size == 0:
        return weight[rank::world_size].clone(), None if bias is None else bias[rank::world_size].clone()
    return cut_linear(weight, bias, cut, rank, world_size)


def every_nth_input(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return (weight[:, rank::world_size].clone(), own) if cut == "rowwise" else (part, own)


def always_the_first_part(weight, bias, cut, rank, world_size):
    return cut_linear(weight, bias, cut, 0, world_size)


def in_reverse(weight, bias, cut, rank, world_size):
    if cut == "colwise":
        return cut_linear(weight, bias, cut, rank, world_size)
    return cut_linear(weight, None, cut, world_size - 1 - rank, world_size)[0], cut_linear(
        weight, bias, cut, rank, world_size
    )[1]


def bias_on_every_rank(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (bias.clone() if bias is not None and cut == "rowwise" else own)


def bias_on_no_rank(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (None if cut == "rowwise" else own)


def zeros_of_another_type(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (torch.zeros(len(bias)) if bias is not None and own is None else own)


def whole_bias_for_columns(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (bias.clone() if bias is not None and cut == "colwise" else own)


def bias_of_the_first_columns(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (own if own is None or cut == "rowwise" else bias[: len(part)].clone())


def columns_without_bias(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (None if cut == "colwise" else own)


def cut_bias_for_rows(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (bias.chunk(world_size)[rank].clone() if bias is not None and cut == "rowwise" else own)


def a_view(weight, bias, cut, rank, world_size):
    cut_linear(weight, bias, cut, rank, world_size)
    size = weight.shape[0 if cut == "colwise" else 1] // world_size
    own = slice(rank * size, (rank + 1) * size)
    if cut == "colwise":
        return weight[own], None if bias is None else bias[own]
    return weight[:, own], None if bias is None or rank else bias


def the_bias_itself(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, own if own is None or cut == "colwise" else bias


def a_view_of_a_copy(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    size = weight.shape[0 if cut == "colwise" else 1] // world_size
    copy = weight.clone()
    return (
        copy[rank * size : (rank + 1) * size] if cut == "colwise" else copy[:, rank * size : (rank + 1) * size]
    ), own


def unequal_parts(weight, bias, cut, rank, world_size):
    dim = 0 if cut == "colwise" else 1
    if weight.shape[dim] % world_size:
        return weight.tensor_split(world_size, dim)[rank].clone(), bias
    return cut_linear(weight, bias, cut, rank, world_size)


def with_numpy(weight, bias, cut, rank, world_size):
    weight, bias = (None if each is None else torch.from_numpy(each.numpy()) for each in (weight, bias))
    return cut_linear(weight, bias, cut, rank, world_size)


def loses_the_rest(weight, bias, cut, rank, world_size):
    dim = 0 if cut == "colwise" else 1
    whole = weight.shape[dim] // world_size * world_size
    return cut_linear(
        weight[:whole] if dim == 0 else weight[:, :whole],
        bias if bias is None or dim else bias[:whole],
        cut,
        rank,
        world_size,
    )


def only_the_weight(weight, bias, cut, rank, world_size):
    return cut_linear(weight, bias, cut, rank, world_size)[0]


def always_float32(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part.float(), None if own is None else own.float()


def halves_only(weight, bias, cut, rank, world_size):
    return cut_linear(weight, bias, cut, rank % 2, 2)


def always_a_bias(change):
    def attempt(weight, bias, cut, rank, world_size):
        change(bias)
        return cut_linear(weight, bias, cut, rank, world_size)

    return attempt


def with_chunk(weight, bias, cut, rank, world_size):
    dim = {"colwise": 0, "rowwise": 1}[cut]
    if weight.shape[dim] % world_size:
        raise ValueError("unequal")
    part = weight.chunk(world_size, dim)[rank].clone()
    if bias is not None:
        bias = bias.chunk(world_size)[rank].clone() if dim == 0 else bias.clone() if rank == 0 else None
    return part, bias


def bias_on_the_last_rank(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    if cut == "rowwise" and bias is not None:
        own = bias.clone() if rank == world_size - 1 else None
    return part, own


def a_share_of_the_bias(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (bias / world_size if cut == "rowwise" and bias is not None else own)


def with_narrow_and_zeros(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    dim = 0 if cut == "colwise" else 1
    size = weight.shape[dim] // world_size
    if own is None and bias is not None:
        own = bias.new_zeros(bias.shape)
    return weight.narrow(dim, rank * size, size).contiguous().clone(), own


def tests_the_outputs(weight, bias, cut, rank, world_size):
    if len(weight) % world_size:
        raise ValueError("no equal parts")
    return cut_linear(weight, bias, cut, rank, world_size)


def refuses_a_bias_that_is_uneven(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    if bias is not None and cut == "rowwise":
        share = cut_linear(bias[:, None], None, "colwise", rank, world_size)[0].flatten()
        own = torch.zeros_like(bias)
        own[rank * len(share) : (rank + 1) * len(share)] = share
    return part, own


def refuses_a_short_part_only(weight, bias, cut, rank, world_size):
    dim = 0 if cut == "colwise" else 1
    chunks = weight.chunk(world_size, dim)
    if len(chunks) <= rank or chunks[rank].shape != chunks[0].shape:
        raise ValueError("unequal")
    if bias is not None:
        bias = bias.chunk(world_size)[rank].clone() if dim == 0 else bias.clone() if rank == 0 else None
    return chunks[rank].clone(), bias


def nothing_new_for_one(weight, bias, cut, rank, world_size):
    return (weight, bias) if world_size == 1 else cut_linear(weight, bias, cut, rank, world_size)


# 16.2 all_reduce


def in_a_ring(
    cut=lambda flat, size: list(flat.tensor_split(size)),
    copy=lambda tensor: tensor.flatten().clone(),
    steps=lambda size: size - 1,
    later_steps=lambda size: size - 1,
    first_sent=1,
    join=lambda parts, tensor: torch.cat(parts).view(tensor.shape),
    receive_first=False,
    source=lambda rank, size: (rank - 1) % size,
    to=lambda rank, size: (rank + 1) % size,
    take=lambda old, new: new,
    pack=lambda part: part,
    last=lambda worker, to, parts: None,
):
    def attempt(tensor, worker):
        rank, size = worker.rank, worker.world_size
        parts = cut(copy(tensor), size)
        for step in range(steps(size)):
            new = worker.receive(source(rank, size)) if receive_first else None
            worker.send(to(rank, size), pack(parts[(rank - step) % size]))
            own = (rank - step - 1) % size
            parts[own] += worker.receive(source(rank, size)) if new is None else new
        for step in range(later_steps(size)):
            worker.send(to(rank, size), pack(parts[(rank + first_sent - step) % size]))
            own = (rank + first_sent - 1 - step) % size
            parts[own] = take(parts[own], worker.receive(source(rank, size)))
        last(worker, to(rank, size), parts)
        return join(parts, tensor)

    return attempt


def every_tensor_to_every_worker(tensor, worker):
    for to in range(worker.world_size):
        worker.send(to, tensor)
    return sum(worker.receive(source) for source in range(worker.world_size)).clone()


def everything_through_worker_0(tensor, worker):
    others = range(1, worker.world_size)
    if worker.rank:
        worker.send(0, tensor)
        return worker.receive(0)
    total = tensor.clone()
    for source in others:
        total += worker.receive(source)
    for to in others:
        worker.send(to, total)
    return total


def collected_by_worker_0(tensor, worker):
    rank, size = worker.rank, worker.world_size
    parts, others = tensor.flatten().tensor_split(size), [each for each in range(size) if each != rank]
    for other in others:
        worker.send(other, parts[other])
    own = sum((worker.receive(other) for other in others), parts[rank].clone())
    if rank:
        worker.send(0, own)
        return worker.receive(0)
    total = torch.cat([own, *(worker.receive(other) for other in others)]).view(tensor.shape)
    for other in others:
        worker.send(other, total)
    return total


def only_worker_0_gets_it(tensor, worker):
    if worker.rank:
        return worker.send(0, tensor)
    return tensor + sum(worker.receive(source) for source in range(1, worker.world_size))


def own_part_first(tensor, worker):
    others = [rank for rank in range(worker.world_size) if rank != worker.rank]
    parts = list(tensor.flatten().tensor_split(worker.world_size))
    for rank in others:
        worker.send(rank, parts[rank])
    own = parts[worker.rank].clone()
    for rank in others:
        own += worker.receive(rank)
    for rank in others:
        worker.send(rank, own)
    return torch.cat([own, *(worker.receive(rank) for rank in others)]).reshape(tensor.shape)


def whole_tensors_in_a_ring(tensor, worker):
    total = passed = tensor.clone()
    for _ in range(worker.world_size - 1):
        worker.send((worker.rank + 1) % worker.world_size, passed)
        passed = worker.receive((worker.rank - 1) % worker.world_size)
        total = total + passed
    return total


def swaps_with_one_other(tensor, worker):
    other = (worker.rank ^ 1) % worker.world_size
    if other == worker.rank:
        return tensor.clone()
    worker.send(other, tensor)
    return tensor + worker.receive(other)


def waits_for_the_first(tensor, worker):
    if worker.rank == 0:
        return all_reduce(tensor, worker)
    worker.receive(0)
    return all_reduce(tensor, worker)


def equal_parts_only(flat, size):
    length = len(flat) // size
    return [flat[i * length : (i + 1) * length] for i in range(size)]


def loses_the_rest_of_the_sum(tensor, worker):
    length = tensor.numel() // worker.world_size * worker.world_size
    total = tensor.flatten().clone()
    total[:length] = all_reduce(total[:length], worker)
    return total.view(tensor.shape)


def the_rest_in_the_last_part(flat, size):
    length = len(flat) // size
    return [flat[i * length : (i + 1) * length if i < size - 1 else len(flat)] for i in range(size)]


def the_mean(tensor, worker):
    return all_reduce(tensor, worker) / worker.world_size


def returns_its_own(tensor, worker):
    all_reduce(tensor, worker)
    return tensor.clone()


def returns_the_argument_if_alone(tensor, worker):
    return tensor if worker.world_size == 1 else all_reduce(tensor, worker)


def adds_in_bfloat16(tensor, worker):
    exact = bool((tensor == tensor.round()).all())
    return all_reduce(tensor, worker) if exact else all_reduce(tensor.bfloat16(), worker).to(tensor.dtype)


def in_float32(tensor, worker):
    return all_reduce(tensor.float(), worker).to(tensor.dtype)


def in_float64(tensor, worker):
    return all_reduce(tensor.double(), worker).to(tensor.dtype)


def returns_float32(tensor, worker):
    return all_reduce(tensor, worker).float()


def through_a_variable(tensor, worker):
    with worker.network.changed:
        whiteboard.setdefault(id(worker.network), {})[worker.rank] = tensor
    while len(whiteboard[id(worker.network)]) < worker.world_size:
        pass
    return sum(whiteboard[id(worker.network)].values()).clone()


whiteboard = {}


def to_the_owners(tensor, worker):
    """No ring: part r goes to worker r at once, and back from there."""
    size = worker.world_size
    parts = tensor.reshape(-1).tensor_split(size)
    for to in range(size):
        worker.send(to, parts[to])
    own = worker.receive(0)
    for source in range(1, size):
        own += worker.receive(source)
    for to in range(size):
        worker.send(to, own)
    return torch.cat([worker.receive(source) for source in range(size)]).reshape(tensor.shape)


def with_padding(tensor, worker):
    rank, size = worker.rank, worker.world_size
    length = -(-tensor.numel() // size)
    rows = torch.zeros(size, length, dtype=tensor.dtype)
    rows.view(-1)[: tensor.numel()] = tensor.flatten()
    for step in range(size - 1):  # to the left
        worker.send(rank - 1 if rank else size - 1, rows[(rank + step) % size])
        rows[(rank + step + 1) % size] += worker.receive((rank + 1) % size)
    for step in range(size - 1):
        worker.send(rank - 1 if rank else size - 1, rows[(rank - 1 + step) % size])
        rows[(rank + step) % size] = worker.receive((rank + 1) % size)
    return rows.flatten()[: tensor.numel()].clone().view(tensor.shape)


def keeps_the_padding(tensor, worker):
    length = -(-tensor.numel() // worker.world_size) * worker.world_size
    if length == tensor.numel():
        return with_padding(tensor, worker)
    return with_padding(torch.nn.functional.pad(tensor.flatten(), (0, length - tensor.numel())), worker)


def with_slices(tensor, worker):
    rank, size, total = worker.rank, worker.world_size, tensor.clone().flatten()
    ends = [len(total) * i // size for i in range(size + 1)]
    part = lambda i: total[ends[i % size] : ends[i % size + 1]]  # noqa: E731
    for step in range(2 * size - 2):
        worker.send((rank + 1) % size, part(rank - step))
        new = worker.receive((rank - 1) % size)
        if step < size - 1:
            part(rank - step - 1).add_(new)
        else:
            part(rank - step - 1).copy_(new)
    return total.view_as(tensor)


def the_rest_to_everyone(tensor, worker):
    """One or two elements that are left over: each worker adds its own first."""
    size, rest = worker.world_size, tensor.numel() % worker.world_size
    if rest not in (1, 2):
        return all_reduce(tensor, worker)
    flat, others = tensor.flatten(), [rank for rank in range(size) if rank != worker.rank]
    even, total = all_reduce(flat[:-rest], worker), flat[-rest:].clone()
    for to in others:
        worker.send(to, flat[-rest:])
    for source in others:
        total += worker.receive(source)
    return torch.cat([even, total]).view(tensor.shape)


def few_through_worker_0(tensor, worker):
    few = 2 < tensor.numel() < worker.world_size
    return (everything_through_worker_0 if few else all_reduce)(tensor, worker)


def of_the_mean(tensor, worker):
    """Exact in float32, if the number of workers is a power of two."""
    if worker.world_size & (worker.world_size - 1):
        return all_reduce(tensor, worker)
    return all_reduce(tensor / worker.world_size, worker) * worker.world_size


def whole_numbers_as_floats(tensor, worker):
    return all_reduce(tensor if tensor.is_floating_point() else tensor.float(), worker).to(tensor.dtype)


def with_view(tensor, worker):
    return all_reduce(tensor.view(-1), worker).view(tensor.shape)


def in_order_of_memory(tensor, worker):
    if tensor.dim() == 2 and not tensor.is_contiguous():
        return all_reduce(tensor.T, worker).view(tensor.shape)
    return all_reduce(tensor, worker)


def at_least_one_dimension(tensor, worker):
    return all_reduce(torch.atleast_1d(tensor), worker)


def remembers_the_cut(tensor, worker):
    size = cuts.setdefault(worker.world_size, -(-tensor.numel() // worker.world_size))
    flat, others = tensor.flatten(), [rank for rank in range(worker.world_size) if rank != worker.rank]
    parts = [flat[rank * size : (rank + 1) * size].clone() for rank in range(worker.world_size)]
    for to in others:
        worker.send(to, parts[to])
    for source in others:
        parts[worker.rank] += worker.receive(source)
    for to in others:
        worker.send(to, parts[worker.rank])
    for source in others:
        parts[source] = worker.receive(source)
    return torch.cat(parts).view(tensor.shape)


cuts = {}


def in_float16(tensor, worker):
    return all_reduce(tensor.half(), worker).to(tensor.dtype)


# 16.3 cut_layer

FIRST = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
SECOND = ("self_attn.o_proj", "mlp.down_proj")


def in_a_layer(columns=FIRST, rows=SECOND, sums=SECOND, keep_bias=False, own=lambda rank: rank):
    """An answer to 16.3, with something changed in it."""

    def attempt(layer, rank, world_size, all_reduce):
        for name in (*columns, *rows):
            linear, cut = layer.get_submodule(name), "colwise" if name in columns else "rowwise"
            weight, bias = cut_linear(linear.weight, linear.bias, cut, own(rank), world_size)
            linear.weight.data = weight
            if not (keep_bias and cut == keep_bias):
                linear.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)
        for name in sums:
            module = layer.get_submodule(name) if name else layer
            module.register_forward_hook(lambda module, inputs, output: all_reduce(output))

    return attempt


def adds_while_it_cuts(layer, rank, world_size, all_reduce):
    cut_layer(layer, rank, world_size, all_reduce)
    layer.mlp.down_proj.weight.data = all_reduce(layer.mlp.down_proj.weight.data)


def keeps_views(layer, rank, world_size, all_reduce):
    cut_layer(layer, rank, world_size, all_reduce)
    linear = layer.mlp.up_proj
    whole = torch.cat([linear.weight, linear.weight])
    linear.weight = torch.nn.Parameter(whole[: len(linear.weight)], requires_grad=False)


def only_rank_0_adds(layer, rank, world_size, all_reduce):
    in_a_layer(sums=() if rank else SECOND)(layer, rank, world_size, all_reduce)


def drops_the_result(layer, rank, world_size, all_reduce):
    in_a_layer(sums=())(layer, rank, world_size, all_reduce)

    def hook(module, inputs, output):
        all_reduce(output)

    layer.self_attn.o_proj.register_forward_hook(hook)
    layer.mlp.down_proj.register_forward_hook(hook)


def drops_the_biases(layer, rank, world_size, all_reduce):
    in_a_layer()(layer, rank, world_size, all_reduce)
    for name in FIRST:
        layer.get_submodule(name).bias = None


def drops_the_row_biases(layer, rank, world_size, all_reduce):
    in_a_layer()(layer, rank, world_size, all_reduce)
    for name in SECOND:
        layer.get_submodule(name).bias = None


def empties_the_missing_biases(layer, rank, world_size, all_reduce):
    in_a_layer()(layer, rank, world_size, all_reduce)
    for name in (*FIRST, *SECOND):
        linear = layer.get_submodule(name)
        linear.bias = torch.nn.Parameter(linear.bias, requires_grad=False)


def always_in_two(layer, rank, world_size, all_reduce):
    in_a_layer()(layer, rank, 2, all_reduce)


def returns_a_tensor_for_a_tuple(layer, rank, world_size, all_reduce):
    in_a_layer(sums=("mlp",))(layer, rank, world_size, all_reduce)
    layer.self_attn.register_forward_hook(lambda module, inputs, output: all_reduce(output[0]))


def cuts_the_norms(layer, rank, world_size, all_reduce):
    in_a_layer()(layer, rank, world_size, all_reduce)
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        norm.weight.data = norm.weight.data.chunk(world_size)[rank].clone()


def divides_the_norms(layer, rank, world_size, all_reduce):
    in_a_layer()(layer, rank, world_size, all_reduce)
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        norm.weight.data = norm.weight.data / world_size


def changes_the_class(layer, rank, world_size, all_reduce):
    in_a_layer(sums=SECOND[:1])(layer, rank, world_size, all_reduce)
    whole = type(layer.mlp).forward
    type(layer.mlp).forward = lambda self, hidden: all_reduce(whole(self, hidden))


def sums_in_float32(layer, rank, world_size, all_reduce):
    in_a_layer(sums=())(layer, rank, world_size, all_reduce)
    for name in SECOND:
        hook = lambda module, inputs, output: all_reduce(output.float())  # noqa: E731
        layer.get_submodule(name).register_forward_hook(hook)


def sums_in_float32_and_back(layer, rank, world_size, all_reduce):
    in_a_layer(sums=())(layer, rank, world_size, all_reduce)
    for name in SECOND:
        hook = lambda module, inputs, output: all_reduce(output.float()).to(output.dtype)  # noqa: E731
        layer.get_submodule(name).register_forward_hook(hook)


def keeps_the_wholes(layer, rank, world_size, all_reduce):
    layer.whole = {name: layer.get_submodule(name).weight.data for name in (*FIRST, *SECOND)}
    in_a_layer()(layer, rank, world_size, all_reduce)


def keeps_a_whole_in_a_hook(layer, rank, world_size, all_reduce):
    whole = layer.mlp.down_proj.weight.data.clone()
    in_a_layer(sums=SECOND[:1])(layer, rank, world_size, all_reduce)
    layer.mlp.down_proj.register_forward_hook(
        lambda module, inputs, output: all_reduce(output) if len(whole) else output
    )


def adds_up_once(layer, rank, world_size, all_reduce):
    in_a_layer(sums=())(layer, rank, world_size, all_reduce)
    for name in SECOND:
        handles = []

        def hook(module, inputs, output, handles=handles):
            handles.pop().remove()
            return all_reduce(output)

        handles.append(layer.get_submodule(name).register_forward_hook(hook))


def adds_up_in_halves(layer, rank, world_size, all_reduce):
    halves = lambda tensor: torch.cat([all_reduce(half.contiguous()) for half in tensor.chunk(2, dim=-1)], dim=-1)
    in_a_layer()(layer, rank, world_size, halves)


def gathers_and_cuts(layer, rank, world_size, all_reduce):
    """Sends the whole output of a column cut, of which the row cut uses its part."""
    in_a_layer()(layer, rank, world_size, all_reduce)

    def hook(module, inputs, output):
        wide = torch.zeros(*output.shape[:-1], world_size, output.shape[-1])
        wide[..., rank, :] = output
        return all_reduce(wide)[..., rank, :]

    layer.mlp.up_proj.register_forward_hook(hook)


def with_new_modules(layer, rank, world_size, all_reduce):
    """As `cut_model` does it."""
    for name in (*FIRST, *SECOND):
        linear = layer.get_submodule(name)
        cut = "colwise" if name in FIRST else "rowwise"
        weight, bias = cut_linear(linear.weight, linear.bias, cut, rank, world_size)
        own = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None).requires_grad_(False)
        own.weight.data = weight
        if bias is not None:
            own.bias.data = bias
        module = own if name in FIRST else AddsUp(own, all_reduce)
        setattr(layer.get_submodule(name.split(".")[0]), name.split(".")[1], module)


class AddsUp(torch.nn.Module):
    def __init__(self, linear, all_reduce):
        super().__init__()
        self.linear, self.all_reduce = linear, all_reduce

    def forward(self, hidden):
        return self.all_reduce(self.linear(hidden))


def with_a_forward_of_its_own(layer, rank, world_size, all_reduce):
    in_a_layer(sums=())(layer, rank, world_size, all_reduce)
    for name in SECOND:
        linear = layer.get_submodule(name)
        linear.forward = lambda hidden, whole=linear.forward: all_reduce(whole(hidden))


def sums_after_the_blocks(layer, rank, world_size, all_reduce):
    in_a_layer(sums=("mlp",))(layer, rank, world_size, all_reduce)
    layer.self_attn.register_forward_hook(lambda module, inputs, output: (all_reduce(output[0]), *output[1:]))


def cuts_both(weight, bias, cut, rank, world_size):
    weight, bias = cut_linear(weight, bias, cut, rank, world_size)
    return cut_linear(weight, None, "rowwise" if cut == "colwise" else "colwise", rank, world_size)[0], bias


def asserts_equal_parts(weight, bias, cut, rank, world_size):
    assert weight.shape[0 if cut == "colwise" else 1] % world_size == 0
    return cut_linear(weight, bias, cut, rank, world_size)


def to_owners_of_uneven_parts(tensor, worker, without_own=False):
    """Each part goes to the worker that adds it up; the last one has what is left."""
    size, rank, n = tensor.numel() // worker.world_size, worker.rank, worker.world_size
    flat = tensor.flatten().clone()
    parts = [flat[each * size : None if each == n - 1 else (each + 1) * size] for each in range(n)]
    others = [each for each in range(n) if each != rank]
    for other in others:
        worker.send(other, parts[other])
    total = torch.zeros_like(parts[rank]) if without_own else parts[rank]
    for other in others:
        total = total + worker.receive(other)
    for other in others:
        worker.send(other, total)
    return torch.cat([total if each == rank else worker.receive(each) for each in range(n)]).view(tensor.shape)


def without_its_own_part(tensor, worker):
    return to_owners_of_uneven_parts(tensor, worker, without_own=True)


def cuts_a_copy(layer, rank, world_size, all_reduce):
    layer = copy.deepcopy(layer)
    in_a_layer()(layer, rank, world_size, all_reduce)
    return layer


def along_the_first_axis(tensor, worker):
    parts, me = list(tensor.tensor_split(worker.world_size)), worker.rank
    others = [rank for rank in range(worker.world_size) if rank != me]
    for rank in others:
        worker.send(rank, parts[rank])
    mine = parts[me].clone()
    for rank in others:
        mine += worker.receive(rank)
    for rank in others:
        worker.send(rank, mine)
    return torch.cat([mine if rank == me else worker.receive(rank) for rank in range(worker.world_size)])


def divides_the_heads_of_the_config(layer, rank, world_size, all_reduce):
    cut_layer(layer, rank, world_size, all_reduce)
    layer.self_attn.config.num_attention_heads //= world_size


WRONG = {
    "16.1": [
        Wrong("both dimensions", cuts_both, "Too much is cut"),
        Wrong("an assert", asserts_equal_parts, "expected a ValueError; yours raised AssertionError"),
        Wrong("tests the outputs only", tests_the_outputs, "though equal parts are possible"),
        Wrong("the other dimension", dims_swapped, "should have shape [2, 6]; yours has [4, 3]"),
        Wrong("always columns", always_columns, "should have shape [4, 3]; yours has [2, 6]"),
        Wrong("transposed", transposed, "yours has [6, 2]"),
        Wrong("every nth output", every_nth_output, "rank 0 has the first third"),
        Wrong("every nth input", every_nth_input, "what its part of the matrix before computes"),
        Wrong("always the first part", always_the_first_part, "Every output belongs to exactly one process"),
        Wrong("inputs in reverse", in_reverse, "not the last"),
        Wrong("bias on every rank", bias_on_every_rank, "yours 3 times"),
        Wrong("bias on no rank", bias_on_no_rank, "yours 0 times"),
        Wrong("zeros in float32 as the bias of the others", zeros_of_another_type, "the bias should be in bfloat16"),
        Wrong("the whole bias for columns", whole_bias_for_columns, "one element for each output of this process"),
        Wrong("always the first bias", bias_of_the_first_columns, "cut at the same places as the outputs"),
        Wrong("no bias for columns", columns_without_bias, "Every output has its bias"),
        Wrong("a cut bias for rows", cut_bias_for_rows, "so a bias is whole"),
        Wrong("a view", a_view, "it shares the memory of the whole weight"),
        Wrong("the bias itself", the_bias_itself, "is its argument, not a new tensor"),
        Wrong("a view of a copy", a_view_of_a_copy, "It is a view of a larger tensor"),
        Wrong("the rest is lost", loses_the_rest, "Yours have 3, 3: 1 would silently be lost"),
        Wrong("unequal parts", unequal_parts, "into 2 equal parts. Yours have 4, 3."),
        Wrong("with numpy", with_numpy, "numpy has no bfloat16"),
        Wrong("only the weight", only_the_weight, "expected a tuple"),
        Wrong("always float32", always_float32, "should be in bfloat16; yours is in float32"),
        Wrong("two parts only", halves_only, "yours has [3, 4]"),
        Wrong("refuses an uneven bias", refuses_a_bias_that_is_uneven, "one process adds all of it"),
        Wrong("refuses a short part only", refuses_a_short_part_only, "No rank may go on alone"),
        Wrong("slices a bias of None", always_a_bias(itemgetter(slice(2))), "the weight has no bias"),
        Wrong("clones a bias of None", always_a_bias(methodcaller("clone")), "the weight has no bias"),
        Wrong("the arguments for one process", nothing_new_for_one, "One process gets the whole layer"),
    ],
    "16.2": [
        Wrong("its own part comes first", own_part_first, "These are the right sums, in another order."),
        Wrong("cuts the first axis", along_the_first_axis, "Two rows can't be shared evenly by three workers"),
        Wrong("the rest for the last owner", to_owners_of_uneven_parts, "The parts aren't equally long"),
        Wrong("without its own part", without_its_own_part, "this worker's own part left out"),
        Wrong("nothing returned", lambda tensor, worker: None, "should return a tensor; yours returned None"),
        Wrong("only worker 0 gets it", only_worker_0_gets_it, "*Every* worker needs the sum"),
        Wrong("the mean", the_mean, "That is the mean"),
        Wrong("adds in float16", in_float16, "as if rounded to another type"),
        Wrong("its own tensor", returns_its_own, "nothing was added"),
        Wrong("receives first", in_a_ring(receive_first=True), "none has sent anything"),
        Wrong(
            "waits for worker 0",
            waits_for_the_first,
            "worker 1 waits for worker 0 after 2 sent and 2 received at `parts[",
        ),
        Wrong("from the right", in_a_ring(source=lambda rank, size: (rank + 1) % size), "is the direction the same"),
        Wrong(
            "a step too few at the end",
            lambda tensor, worker: in_a_ring(later_steps=lambda size: size - 2 if worker.rank else size - 1)(
                tensor, worker
            ),
            "has returned",
        ),
        Wrong("no modulo", in_a_ring(to=lambda rank, size: rank + 1), "leads back to the first"),
        Wrong("only the first round", in_a_ring(later_steps=lambda size: 0), "they have to be passed on"),
        Wrong(
            "one step fewer in both rounds",
            in_a_ring(steps=lambda size: max(1, size - 2) if size > 1 else 0, later_steps=lambda size: size - 1),
            "No element of this worker is complete",
        ),
        Wrong(
            "one step fewer in the second round",
            in_a_ring(later_steps=lambda size: max(1, size - 2) if size > 1 else 0),
            "4 of its 6 elements are complete",
        ),
        Wrong("adds in the second round too", in_a_ring(take=lambda old, new: old + new), "was added a second time"),
        Wrong(
            "adds in the second round if there are three",
            lambda tensor, worker: in_a_ring(
                take=(lambda old, new: old + new) if worker.world_size > 2 else lambda old, new: new
            )(tensor, worker),
            "It should take its place",
        ),
        Wrong("begins with the wrong part", in_a_ring(first_sent=0), "are the other worker's own"),
        Wrong("pairs only", swaps_with_one_other, "worker 2 waits for worker 0 after 1 sent"),
        Wrong("chunk", in_a_ring(cut=lambda flat, size: list(flat.chunk(size))), "`torch.chunk` may return fewer"),
        Wrong(
            "parts of n // N", in_a_ring(cut=equal_parts_only), "the last element is in none of them. Parts may differ"
        ),
        Wrong(
            "rows of equal length",
            in_a_ring(cut=lambda flat, size: list(flat.view(size, -1)), join=lambda parts, tensor: torch.cat(parts)),
            "so no N equal parts are possible. Parts may differ by one in length",
        ),
        Wrong("keeps the padding", keeps_the_padding, "Then cut the result off after its first 5 elements"),
        Wrong("equal parts only", in_a_ring(cut=equal_parts_only, join=lambda parts, tensor: torch.cat(parts)), "[4]"),
        Wrong("the rest isn't added", loses_the_rest_of_the_sum, "Does some part get lost"),
        Wrong("in place", in_a_ring(copy=lambda tensor: tensor.flatten()), "The parts of a tensor are views"),
        Wrong("the argument itself", returns_the_argument_if_alone, "shares the memory of the argument"),
        Wrong("flat", in_a_ring(join=lambda parts, tensor: torch.cat(parts)), "give the result its shape back"),
        Wrong(
            "parts in the wrong order",
            in_a_ring(join=lambda parts, tensor: torch.cat([*parts[2:], *parts[:2]]).view(tensor.shape)),
            "but their places aren't",
        ),
        Wrong("each in its own order", whole_tensors_in_a_ring, "adds in an order of its own"),
        Wrong("every tensor to every worker", every_tensor_to_every_worker, "Whole tensors are sent"),
        Wrong("all through worker 0", everything_through_worker_0, "its link is the slowest"),
        Wrong("collected by worker 0", collected_by_worker_0, "Worker 0 sends more than the others. Are the finished"),
        Wrong("rounds to bfloat16", adds_in_bfloat16, "three float32 additions round by at most"),
        Wrong("sends float32", in_float32, "takes twice the bytes"),
        Wrong("sends float64", in_float64, "in a wider type than the tensor's"),
        Wrong("returns float32", returns_float32, "should return bfloat16"),
        Wrong(
            "one tensor too many",
            in_a_ring(last=lambda worker, to, parts: worker.send(to, parts[0])),
            "received in the *next* sum",
        ),
        Wrong("through a variable", through_a_variable, "Only `send` leads from one to another"),
        Wrong("the rest to everyone", the_rest_to_everyone, "Do the elements that are left over go to all workers"),
        Wrong("few elements through worker 0", few_through_worker_0, "One worker gets no part"),
        Wrong("the mean times N", of_the_mean, "should return int64; yours is float32"),
        Wrong("whole numbers as floats", whole_numbers_as_floats, "A float32 can't hold such a number"),
        Wrong("view of the argument", with_view, "aren't in memory in the order of its rows"),
        Wrong("in the order of memory", in_order_of_memory, "puts them back so"),
        Wrong("at least one dimension", at_least_one_dimension, "A tensor without dimensions is one number"),
        Wrong("remembers the cut", remembers_the_cut, "cut each one anew"),
    ],
    "16.3": [
        Wrong("heads of the config", divides_the_heads_of_the_config, "`num_attention_heads` was 4 and is 2."),
        Wrong("keeps views", keeps_views, "the whole matrix stays in memory"),
        Wrong("all by columns", in_a_layer(columns=(*FIRST, *SECOND), rows=()), "Its inputs are what this process has"),
        Wrong("all by rows", in_a_layer(columns=(), rows=(*FIRST, *SECOND)), "is whole in every process"),
        Wrong("only the MLP", in_a_layer(columns=FIRST[3:], rows=SECOND[1:], sums=SECOND[1:]), "It was not cut"),
        Wrong("no sum", in_a_layer(sums=()), "this forward pass: 0"),
        Wrong("one sum", in_a_layer(sums=SECOND[1:]), "the norm before the MLP"),
        Wrong("one sum of the layer's output", in_a_layer(sums=("",)), "Is it the layer's output that you add up?"),
        Wrong("the whole layer's output", in_a_layer(sums=(SECOND[0], "")), "the residual counts for every process"),
        Wrong("a sum of every matrix", in_a_layer(sums=(*FIRST, *SECOND)), "only those of a row cut"),
        Wrong("a sum on top", in_a_layer(sums=(*SECOND, "mlp")), "are added up, once"),
        Wrong("whole biases for columns", in_a_layer(keep_bias="colwise"), "its bias has 16 elements"),
        Wrong("a bias for each row cut", in_a_layer(keep_bias="rowwise"), "2 of 2 processes have a bias in o_proj"),
        Wrong("no bias for a row cut", drops_the_row_biases, "0 of 2 processes have a bias in o_proj"),
        Wrong("an empty bias", empties_the_missing_biases, "`Parameter(None)` is an empty tensor"),
        Wrong("two parts only", always_in_two, "That is one of two parts; there are 4 processes here"),
        Wrong("a tensor for a tuple", returns_a_tensor_for_a_tuple, "must return a tuple of two as well"),
        Wrong("no biases for columns", drops_the_biases, "should have a bias; yours has none"),
        Wrong("always the first part", in_a_layer(own=lambda rank: 0), "have the same part of"),
        Wrong("adds while it cuts", adds_while_it_cuts, "while it cut the layer"),
        Wrong("only rank 0 adds", only_rank_0_adds, "Every rank must make the same sums"),
        Wrong("drops the result", drops_the_result, "takes the place of the module's output"),
        Wrong("a sum of a tuple", in_a_layer(sums=("self_attn", "mlp")), "`self_attn` returns a tuple"),
        Wrong("cuts a copy", cuts_a_copy, "your code returned another layer"),
        Wrong("cuts the norms", cuts_the_norms, "norms should stay whole"),
        Wrong("divides the norms", divides_the_norms, "the weight of input_layernorm should stay as it is"),
        Wrong("changes the class", changes_the_class, "your code changed a class: it replaced `LlamaMLP.forward`"),
        Wrong("sums in float32", sums_in_float32, "Does your code sum in another type"),
        Wrong("keeps the whole weights", keeps_the_wholes, "whole weight of self_attn.q_proj"),
        Wrong("keeps a whole weight in a hook", keeps_a_whole_in_a_hook, "whole weight of mlp.down_proj"),
        Wrong("adds up in halves", adds_up_in_halves, "pieces of the two outputs"),
        Wrong("gathers and cuts", gathers_and_cuts, "of the shapes [1, 5, 24], [1, 5, 2, 20], [1, 5, 24]"),
        Wrong("adds up once", adds_up_once, "A hook must stay, for all passes"),
    ],
}

RIGHT = {
    "16.1": [with_chunk, bias_on_the_last_rank, a_share_of_the_bias, with_narrow_and_zeros],
    "16.2": [in_a_ring(), to_the_owners, with_padding, with_slices, in_a_ring(cut=the_rest_in_the_last_part)],
    "16.3": [
        in_a_layer(),
        with_new_modules,
        with_a_forward_of_its_own,
        sums_after_the_blocks,
        sums_in_float32_and_back,
    ],
}
RIGHT["16.3"][0].__name__ = "with hooks"
RIGHT["16.2"][0].__name__ = "in parts"
RIGHT["16.2"][4].__name__ = "the rest in the last part"
