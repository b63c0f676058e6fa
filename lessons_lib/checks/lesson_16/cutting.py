"""Judges 16.1, `cut_linear`: the two cuts of a matrix."""

import itertools

import torch
import torch.nn.functional as F

from lessons_lib.checks.exercise import Mistake, call, short


def check_cut_linear(attempt) -> None:
    for check in (
        _check_example, _check_columns, _check_rows, _check_bias, _check_mlp, _check_memory, _check_uneven,
        _check_other_side, _check_sizes,
    ):  # fmt: skip
        check(attempt)


def _cut(attempt, weight, bias, cut: str, rank: int, world_size: int, case: str = ""):
    without = "" if bias is not None else " without a bias"
    case = case or f"a weight of shape {list(weight.shape)}{without}, cut = {cut!r}, rank {rank} of {world_size}."
    try:
        got = call(attempt, weight, bias, cut, rank, world_size, case=case)
    except ValueError as error:
        if "unpack" in str(error):
            raise
        outputs, inputs = weight.shape
        raise Mistake(
            f"your code raised ValueError, though equal parts are possible: {short(str(error))}.",
            case=case,
            idea=f"Colwise divides the {outputs} outputs, rowwise the {inputs} inputs. Does your code test the number "
            "that this cut divides?",
        ) from None
    except (TypeError, AttributeError) as error:
        if bias is not None or "NoneType" not in str(error):
            raise
        raise Mistake(
            f"your code raised {type(error).__name__}: {error}.",
            case=case,
            idea="`bias` is None here: the weight has no bias. Does your code cut or copy it all the same? Then the "
            "part has no bias, either: return None for it.",
        ) from None
    if not (isinstance(got, tuple) and len(got) == 2):
        raise Mistake(
            f"expected a tuple (weight, bias); yours returned {short(got, 60)}.", case=case, idea="Return both parts."
        )
    for name, part in zip(("weight", "bias"), got):
        if not (isinstance(part, torch.Tensor) or (name == "bias" and part is None)):
            raise Mistake(
                f"the {name} should be a tensor; yours is {short(part, 60)}.", case=case, idea="Slice the tensor."
            )
    return got, case


def _shape(got, want: list[int], what: str, case: str, idea: str) -> None:
    if list(got.shape) != want:
        if idea is AXES and got.dim() == 2 and got.shape[0] <= want[0] and got.shape[1] <= want[1]:
            idea = "Too much is cut: one cut divides either the outputs or the inputs, and keeps all of the others."
        raise Mistake(f"the {what} should have shape {want}; yours has {list(got.shape)}.", case=case, idea=idea)


def _tensors(outputs: int, inputs: int):
    generator = torch.Generator().manual_seed(outputs * 100 + inputs)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return draw(3, inputs), draw(outputs, inputs), draw(outputs)


AXES = (
    "A weight is [outputs, inputs], so the outputs are its *rows* in memory: `weight[...]` for colwise, `weight[:, "
    "...]` for "
    "rowwise. The names come from the formula x @ W, where W is the transposed weight."
)


def _check_example(attempt) -> None:
    weight, bias = torch.arange(12.0).view(4, 3).repeat(1, 2), torch.arange(4.0)
    for cut, shape in (("colwise", [2, 6]), ("rowwise", [4, 3])):
        for rank in range(2):
            (own, _), case = _cut(attempt, weight, bias, cut, rank, 2)
            _shape(own, shape, "weight", case, AXES)


def _check_columns(attempt) -> None:
    hidden, weight, _ = _tensors(6, 4)
    case = "a weight of shape [6, 4] without a bias, cut = 'colwise', all ranks of 3; their outputs side by side."
    parts = [_cut(attempt, weight, None, "colwise", rank, 3)[0][0] for rank in range(3)]
    for rank, part in enumerate(parts):
        _shape(part, [2, 4], f"weight of rank {rank}", case, AXES)
    if not torch.allclose(torch.cat([F.linear(hidden, part) for part in parts], dim=-1), F.linear(hidden, weight)):
        in_order = all(any(torch.equal(row, other) for other in torch.cat(parts)) for row in weight)
        idea = (
            "Each process has the right number of outputs, but not the right ones: rank 0 has the first third, rank 1 "
            "the "
            "second, so that an attention head stays in one piece."
            if in_order
            else "Every output belongs to exactly one process: from `rank * size` to `(rank + 1) * size`."
        )
        raise Mistake(
            "the outputs of all ranks, side by side, should be those of the whole layer.", case=case, idea=idea
        )


def _check_rows(attempt) -> None:
    hidden, weight, _ = _tensors(4, 6)
    case = "a weight of shape [4, 6] without a bias, cut = 'rowwise', all ranks of 3; each multiplies its third of x."
    parts = [_cut(attempt, weight, None, "rowwise", rank, 3)[0][0] for rank in range(3)]
    for rank, part in enumerate(parts):
        _shape(part, [4, 2], f"weight of rank {rank}", case, AXES)
    total = sum(F.linear(share, part) for share, part in zip(hidden.chunk(3, dim=-1), parts))
    if not torch.allclose(total, F.linear(hidden, weight), atol=1e-5):
        raise Mistake(
            "the sum over all ranks should be the output of the whole layer.",
            case=case,
            idea="Rank 0 has the first third of the inputs, not the last."
            if torch.equal(parts[0], weight[:, -2:])
            else "Rank r has the inputs from `r * size` to `(r + 1) * size`: what its part of the matrix before "
            "computes.",
        )


def _check_bias(attempt) -> None:
    hidden, weight, bias = _tensors(6, 6)
    for cut in ("colwise", "rowwise"):
        for rank in range(3):
            (_, none), case = _cut(attempt, weight, None, cut, rank, 3)
            if none is not None and bool((none != 0).any()):
                raise Mistake(f"without a bias, the part's bias should be None; yours is {short(none)}.", case=case)
    case = "a weight of shape [6, 6] with a bias, cut = 'colwise', all ranks of 3; their outputs side by side."
    parts = [_cut(attempt, weight, bias, "colwise", rank, 3)[0] for rank in range(3)]
    for rank, (_, own) in enumerate(parts):
        if own is None:
            raise Mistake(
                f"rank {rank} should have a bias; yours has none.",
                case=case,
                idea="Every output has its bias, and the outputs are spread over all processes.",
            )
        _shape(own, [2], f"bias of rank {rank}", case, "The bias has one element for each output of this process.")
    if not torch.allclose(
        torch.cat([F.linear(hidden, *part) for part in parts], dim=-1), F.linear(hidden, weight, bias), atol=1e-5
    ):
        raise Mistake(
            "the outputs of all ranks, side by side, should be those of the whole layer.",
            case=case,
            idea="The bias is cut at the same places as the outputs.",
        )
    case = "a weight of shape [6, 6] with a bias, cut = 'rowwise', all ranks of 3; the sum over all ranks."
    parts = [_cut(attempt, weight, bias, "rowwise", rank, 3)[0] for rank in range(3)]
    for rank, (_, own) in enumerate(parts):
        if own is not None:
            _shape(
                own,
                [6],
                f"bias of rank {rank}",
                case,
                "Each process computes a part of *every* output, so a bias is whole.",
            )
    total = sum(F.linear(share, *part) for share, part in zip(hidden.chunk(3, dim=-1), parts))
    off, whole = (total - F.linear(hidden, weight, bias)) / bias, F.linear(hidden, weight, bias)
    if not torch.allclose(total, whole, atol=1e-5):
        times = round(float(off.median())) + 1
        idea = {
            3: "The results of all processes are added up, and each of them has added the bias. Only one of them may.",
            0: "No process adds the bias. Exactly one of them must.",
        }.get(times, "The sum of all biases must be the bias of the layer.")
        raise Mistake(
            f"the sum over all ranks should be the output of the whole layer; the bias is in yours {times} times.",
            case=case,
            idea=idea,
        )


def _check_mlp(attempt) -> None:
    hidden, up, up_bias = _tensors(8, 4)
    _, down, down_bias = _tensors(4, 8)
    case = "an MLP in two parts: up [8, 4] colwise, SiLU, down [4, 8] rowwise; one sum at the end."
    whole = F.linear(F.silu(F.linear(hidden, up, up_bias)), down, down_bias)
    total = torch.zeros_like(whole)
    for rank in range(2):
        (own_up, _), (own_down, _) = (
            _cut(attempt, up, up_bias, "colwise", rank, 2),
            _cut(attempt, down, down_bias, "rowwise", rank, 2),
        )
        total += F.linear(F.silu(F.linear(hidden, *own_up)), *own_down)
    if not torch.allclose(total, whole, atol=1e-5):
        raise Mistake(
            "the sum over both ranks should be the output of the whole MLP.",
            case=case,
            idea="Rank r's second matrix must have the inputs that its first matrix computes.",
        )


def _check_memory(attempt) -> None:
    _, weight, bias = _tensors(8, 8)
    before = (weight.clone(), bias.clone())
    for cut, world_size in (("colwise", 2), ("rowwise", 2), ("colwise", 1), ("rowwise", 1)):
        (own, own_bias), case = _cut(attempt, weight, bias, cut, 0, world_size)
        for name, part, whole in (("weight", own, weight), ("bias", own_bias, bias)):
            if part is whole:
                raise Mistake(
                    f"the {name} that your code returns is its argument, not a new tensor.",
                    case=case,
                    idea="A change to one of them would change the other. `.clone()` makes a tensor of its own."
                    if world_size > 1
                    else "One process gets the whole layer, but new tensors all the same: `.clone()`.",
                )
            if part is not None and part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr():
                raise Mistake(
                    f"the {name} that your code returns is a view: it shares the memory of the whole {name}.",
                    case=case,
                    idea="A slice keeps the whole tensor alive, so nothing is saved: every process would hold the "
                    "whole "
                    "model. `.clone()` makes a tensor of its own.",
                )
            if part is not None and part.untyped_storage().nbytes() > part.numel() * part.element_size():
                raise Mistake(
                    f"the {name} that your code returns holds {part.untyped_storage().nbytes()} bytes; "
                    f"{part.numel() * part.element_size()} are enough.",
                    case=case,
                    idea="It is a view of a larger tensor. Slice first, then `.clone()`.",
                )
    half, half_bias = weight.bfloat16(), bias.bfloat16()
    for cut, rank in itertools.product(("colwise", "rowwise"), range(2)):
        case = f"a weight of shape [8, 8] in bfloat16 with a bias, cut = {cut!r}, rank {rank} of 2."
        try:
            got, _ = _cut(attempt, half, half_bias, cut, rank, 2, case)
        except TypeError as error:
            if "BFloat16" not in str(error):
                raise
            raise Mistake(
                f"your code raised TypeError: {error}.",
                case=case,
                idea="numpy has no bfloat16, the type of most large models. Slice the tensor itself.",
            ) from None
        for name, part in zip(("weight", "bias"), got):
            if part is not None and part.dtype != torch.bfloat16:
                raise Mistake(
                    f"the {name} should be in bfloat16; yours is in {str(part.dtype).removeprefix('torch.')}.",
                    case=case,
                    idea="A part has the type of the whole. In float32, half of a bfloat16 model is as large as all of "
                    "it, and `F.linear` refuses a weight and a bias of different types.",
                )
    if not (torch.equal(weight, before[0]) and torch.equal(bias, before[1])):
        raise Mistake("your code changed the tensors that it was given.", idea="Make new ones.")


def _check_uneven(attempt) -> None:
    for world_size, size in ((2, 7), (2, 5), (3, 4)):
        for cut in ("colwise", "rowwise"):
            outputs, inputs = (size, 4) if cut == "colwise" else (4, size)
            _, weight, _ = _tensors(outputs, inputs)
            refusing: list[int] = []
            for rank in reversed(range(world_size)):
                case = f"a weight of shape [{outputs}, {inputs}], cut = {cut!r}, rank {rank} of {world_size}."
                _refuse_uneven(attempt, weight, cut, rank, world_size, refusing, case)
                refusing.append(rank)


def _refuse_uneven(attempt, weight, cut: str, rank: int, world_size: int, refusing: list[int], case: str) -> None:
    try:
        got = call(attempt, weight, None, cut, rank, world_size, case=case)
    except ValueError:
        return
    except AssertionError as error:
        raise Mistake(
            f"expected a ValueError; yours raised AssertionError: {short(str(error))}.",
            case=case,
            idea="`raise ValueError(...)`. Python with -O skips every `assert`.",
        ) from None
    shape = list(got[0].shape) if isinstance(got, tuple) and hasattr(got[0], "shape") else got
    dim = 0 if cut == "colwise" else 1
    size = weight.shape[dim]
    if refusing:
        idea = (
            f"Rank {refusing[0]} raises one, as it should. No rank may go on alone: see whether {world_size} divides "
            f"{size}, not how long this rank's own part is."
        )
    else:
        idea = (
            f"{size} can't be divided into {world_size} equal parts. {_uneven_parts(attempt, weight, cut, world_size)}"
        )
    raise Mistake(f"expected a ValueError; yours returned a weight of shape {shape}.", case=case, idea=idea)


def _uneven_parts(attempt, weight, cut: str, world_size: int) -> str:
    """What the parts of all ranks are like, in a sentence; "" if some rank has none."""
    dim = 0 if cut == "colwise" else 1
    try:
        lengths = [attempt(weight, None, cut, rank, world_size)[0].shape[dim] for rank in range(world_size)]
    except Exception:
        return ""
    lost = weight.shape[dim] - sum(lengths)
    if lost > 0:
        return f"Yours have {', '.join(map(str, lengths))}: {lost} would silently be lost."
    return f"Yours have {', '.join(map(str, lengths))}."


def _check_other_side(attempt) -> None:
    """Only the side that is cut must be divisible; a bias lies along the outputs."""
    for cut, outputs, inputs in (("rowwise", 3, 4), ("colwise", 4, 3)):
        hidden, weight, bias = _tensors(outputs, inputs)
        parts = []
        for rank in range(2):
            case = f"a weight of shape [{outputs}, {inputs}] with a bias, cut = {cut!r}, rank {rank} of 2."
            try:
                parts.append(_cut(attempt, weight, bias, cut, rank, 2, case)[0])
            except Mistake as mistake:
                if cut == "rowwise" and "raised ValueError" in mistake.what:
                    mistake.idea = (
                        f"This cut divides the {inputs} inputs. The bias has one element for each output, so 2 needn't "
                        "divide it: one process adds all of it."
                    )
                raise
        if cut == "rowwise":
            got = sum(F.linear(share, *part) for share, part in zip(hidden.chunk(2, dim=-1), parts))
        else:
            got = torch.cat([F.linear(hidden, *part) for part in parts], dim=-1)
        if not torch.allclose(got, F.linear(hidden, weight, bias), atol=1e-5):
            raise Mistake(
                "the parts should compute what the whole layer computes.",
                case=f"a weight of shape [{outputs}, {inputs}] with a bias, cut = {cut!r}, both ranks of 2.",
                idea="Here, 2 divides only the side that is cut. Is an element of the bias lost, or added twice?",
            )


def _check_sizes(attempt) -> None:
    for world_size in (1, 2, 4):
        hidden, weight, bias = _tensors(8, 4)
        case = f"a weight of shape [8, 4] with a bias, all ranks of {world_size}."
        parts = [_cut(attempt, weight, bias, "colwise", rank, world_size, case)[0] for rank in range(world_size)]
        outputs = torch.cat([F.linear(hidden, *part) for part in parts], dim=-1)
        parts = [_cut(attempt, weight, bias, "rowwise", rank, world_size, case)[0] for rank in range(world_size)]
        total = sum(F.linear(share, *part) for share, part in zip(hidden.chunk(world_size, dim=-1), parts))
        whole = F.linear(hidden, weight, bias)
        if not (torch.allclose(outputs, whole, atol=1e-5) and torch.allclose(total, whole, atol=1e-5)):
            raise Mistake(
                "the parts should compute what the whole layer computes.",
                case=case,
                idea="Any number of processes works.",
            )
