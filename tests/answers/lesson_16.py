"""Right answers to the exercises of lesson 16, written in other ways than the reference, and wrong ones that the checks
don't list."""

import torch
from answers import Wrong

from lessons_lib.checks.diagnosis.mistakes import patched
from lessons_lib.checks.lesson_16.scoreboard import straight_to_the_owner
from lessons_lib.serving.all_reduce import all_reduce
from lessons_lib.serving.tensor_parallel import CUTS, cut_linear

# 16.1 cut_linear


def with_chunk(weight, bias, cut, rank, world_size):
    dim = {"colwise": 0, "rowwise": 1}[cut]
    if weight.shape[dim] % world_size:
        raise ValueError("unequal")
    part = weight.chunk(world_size, dim)[rank].clone()
    if bias is not None:
        bias = bias.chunk(world_size)[rank].clone() if dim == 0 else bias.clone() if rank == world_size - 1 else None
    return part, bias


def with_a_share_of_the_bias(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    return part, (bias / world_size if cut == "rowwise" and bias is not None else own)


def with_narrow_and_zeros(weight, bias, cut, rank, world_size):
    part, own = cut_linear(weight, bias, cut, rank, world_size)
    dim = 0 if cut == "colwise" else 1
    size = weight.shape[dim] // world_size
    if own is None:
        own = weight.new_zeros(len(part))
    return weight.narrow(dim, rank * size, size).contiguous().clone(), own


# 16.2 all_reduce


def with_padding(tensor, worker):
    """A ring to the left."""
    rank, size = worker.rank, worker.world_size
    length = -(-tensor.numel() // size)
    rows = torch.zeros(size, length, dtype=tensor.dtype)
    rows.view(-1)[: tensor.numel()] = tensor.flatten()
    for step in range(size - 1):
        worker.send(rank - 1 if rank else size - 1, rows[(rank + step) % size])
        rows[(rank + step + 1) % size] += worker.receive((rank + 1) % size)
    for step in range(size - 1):
        worker.send(rank - 1 if rank else size - 1, rows[(rank - 1 + step) % size])
        rows[(rank + step) % size] = worker.receive((rank + 1) % size)
    return rows.flatten()[: tensor.numel()].clone().view(tensor.shape)


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


# 16.3 cut_layer


def cut_matrices(layer, rank, world_size):
    for name, cut in CUTS.items():
        linear = layer.get_submodule(name)
        linear.weight.data, bias = cut_linear(linear.weight, linear.bias, cut, rank, world_size)
        linear.bias = None if bias is None else torch.nn.Parameter(bias)


class AddsUp(torch.nn.Module):
    def __init__(self, linear, all_reduce):
        super().__init__()
        self.linear, self.all_reduce = linear, all_reduce

    def forward(self, hidden):
        return self.all_reduce(self.linear(hidden).float()).to(hidden.dtype)


def with_new_modules(layer, rank, world_size, all_reduce):
    cut_matrices(layer, rank, world_size)
    layer.self_attn.o_proj = AddsUp(layer.self_attn.o_proj, all_reduce)
    layer.mlp.down_proj = AddsUp(layer.mlp.down_proj, all_reduce)
    return layer


def with_a_forward_of_its_own(layer, rank, world_size, all_reduce):
    cut_matrices(layer, rank, world_size)
    for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
        linear.forward = lambda hidden, whole=linear.forward: all_reduce(whole(hidden))


def sums_after_the_blocks(layer, rank, world_size, all_reduce):
    cut_matrices(layer, rank, world_size)
    layer.mlp.register_forward_hook(lambda module, inputs, output: all_reduce(output))
    layer.self_attn.register_forward_hook(lambda module, inputs, output: (all_reduce(output[0]), *output[1:]))


def through_worker_0(tensor, worker):
    if worker.rank:
        worker.send(0, tensor)
        return worker.receive(0)
    total = tensor + sum(worker.receive(source) for source in range(1, worker.world_size))
    for to in range(1, worker.world_size):
        worker.send(to, total)
    return total


CAT = "torch.cat(parts).view(tensor.shape)"
RING = {
    "a complete part is added": (
        "= worker.receive => = parts[(rank - step) % size] + worker.receive",
        "worker 0's twice",
    ),
    "the wrong part is passed on": ("rank + 1 - step => rank - step", "Element 0 contains other elements"),
    "no second round": ("range(size - 1) => range(0)", "Element 0 lacks worker 1's"),
    "one part": (f"{CAT} => parts[rank]", "Elements are missing"),
    "in another type": ("worker.receive(left) => worker.receive(left).bfloat16()", "nearly right"),
    "a step too many": ("range(size - 1) => range(size)", "as much as whole tensors"),
    "not flattened": ("tensor.flatten() => tensor", "Flatten the tensor first"),
}
WRONG = {
    "16.2": [Wrong(name, patched(all_reduce, f"~ {patch}", {}), says) for name, (patch, says) in RING.items()]
    + [Wrong("worker 0 adds up", through_worker_0, "Worker 0 sends the most")]
}
RIGHT = {
    "16.1": [with_chunk, with_a_share_of_the_bias, with_narrow_and_zeros],
    "16.2": [straight_to_the_owner, with_padding, with_slices],
    "16.3": [with_new_modules, with_a_forward_of_its_own, sums_after_the_blocks],
}
