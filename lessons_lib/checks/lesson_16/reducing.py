"""16.2, `all_reduce`: sums in workers whose messages are counted."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from lessons_lib.checks.diagnosis import Shown, Task, Watch, brief, kind, mistakes, same
from lessons_lib.checks.diagnosis.kernels import near
from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_16.together import keyed, together

SENT = "the number of elements that the workers send, in order of rank,"


class Case(NamedTuple):
    """One tensor for each worker.

    Attributes:
        times: how often they are added up, one sum after the other.
        is_exact: whether the order of the additions doesn't matter.
    """

    tensors: list[torch.Tensor]
    times: int = 1
    is_exact: bool = True


def numbered(num_workers: int, *shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """1, 2, 3, ... for worker 0, 10, 20, 30, ... for worker 1, and so on."""
    elements = torch.arange(1, torch.Size(shape).numel() + 1).view(shape)
    return [(elements * 10**rank).to(dtype) for rank in range(num_workers)]


def cases() -> Iterator[Case]:
    for num_workers, length in ((2, 4), (1, 3), (3, 3), (3, 6), (4, 8)):
        yield Case(numbered(num_workers, length))
    for num_workers, length in ((2, 5), (3, 7), (3, 8), (4, 10), (4, 11), (2, 1), (3, 2), (4, 1), (4, 3)):
        yield Case(numbered(num_workers, length))
    for shape in ((2, 3), (1, 3, 4), ()):
        yield Case(numbered(3, *shape))
    yield Case([tensor.T for tensor in numbered(2, 2, 3)])
    yield Case(numbered(3, 7), times=2)
    yield Case(numbered(2, 12, dtype=torch.bfloat16))
    yield Case([torch.tensor([2**40 + 1]), torch.tensor([2])])
    for num_workers, length in ((5, 10), (8, 3)):
        yield Case(numbered(num_workers, length, dtype=torch.int32))
    for num_workers, length in ((3, 3), (3, 1), (3, 5), (4, 2), (4, 3), (4, 5)):
        yield Case([torch.full([length], (1e8, 1.0, -1e8, 3.0)[rank]) for rank in range(num_workers)], is_exact=False)
    yield Case([torch.tensor([1.0, 3e-5, 1e4, 0.1]) * (1 + rank / 7) for rank in range(4)])


def run(attempt: Any, case: Case, watch: Watch) -> None:
    size, given, ran = len(case.tensors), [tensor.clone() for tensor in case.tensors], []
    done = f"`all_reduce(tensor, worker)` in {size} worker{'s' * (size > 1)}"

    def work(worker: Any) -> Any:
        return [attempt(case.tensors[worker.rank], worker) for _ in range(case.times)][-1]

    watch(done, lambda: ran.extend(together(work, size, why_stuck)), look=lambda: of_each("tensor", case.tensors))
    if not ran:
        return
    results, workers = ran
    total, sums = sum(given), results
    if case.is_exact:
        watch(done, refuse_other_places, results, total)
    else:  # the last bits depend on the order of the additions
        sums = [near(got, total, 40.0) if kind(got) == kind(total) else got for got in results]
    watch(done, int, look=lambda: of_each("result", sums))
    watch(done, refuse_other_bits, results)
    unread = {pair: len(each) for pair, each in workers[0].network.unread.items() if each}
    left = [f"{count} from worker {source} to worker {to}" for (source, to), count in sorted(unread.items())]
    limit = case.times * 2 * (size - 1) * -(-given[0].numel() // size)
    elements = [worker.sent_bytes / given[0].element_size() for worker in workers]
    shown = f"at most {limit} each" if max(elements) <= limit else ", ".join(f"{each:g}" for each in elements)
    memory = {tensor.untyped_storage().data_ptr() for tensor in case.tensors}
    is_new = all(got.untyped_storage().data_ptr() not in memory for got in results)
    rest = {
        "the workers that have sent something": [rank for rank in range(size) if size == 1 or workers[rank].num_sent],
        "what was sent and never received": Shown("; ".join(left) or "nothing"),
        SENT: Shown(shown),
        "the memory of the result": Shown("new" if is_new else "that of the argument"),
    }
    watch(done, int, look=lambda: rest)


def of_each(what: str, values: list[Any]) -> dict[str, Any]:
    return {f"the {what} of worker {rank}": value for rank, value in enumerate(values)}


def refuse_other_places(results: list[Any], total: torch.Tensor) -> None:
    for got in results:
        if (
            kind(got) == kind(total)
            and not same(got, total)
            and same(*(each.flatten().sort()[0] for each in (got, total)))
        ):
            idea = "These are the right sums, in another order. Each part goes back to its own place in the tensor."
            what = f"a worker should return {brief(total)}; yours returned {brief(got)}."
            raise keyed(Mistake(what, idea=idea), "other places")


def refuse_other_bits(results: list[torch.Tensor]) -> None:
    for rank, got in enumerate(results):
        if not torch.allclose(got, results[0], rtol=0, atol=0, equal_nan=True):
            index = int((got != results[0]).flatten().nonzero()[0])
            one, other = (each.flatten()[index].item() for each in (results[0], got))
            what = (
                f"element {index} should be the same bits in all workers; it is {one!r} in worker 0 and {other!r} in "
            )
            idea = (
                "Float sums depend on their order, and each worker adds in an order of its own. Let one worker add up "
                "an element, also one that is left over if N doesn't divide n, and the others copy its result."
            )
            raise keyed(Mistake(f"{what}worker {rank}.", idea=idea), "other bits")


def why_stuck(places: str) -> tuple[str, str]:
    if "has returned" in places:
        idea = "A worker has returned, and another one still needs something from it. All must make the same steps."
    elif any(f"worker {rank} waits for worker {rank} " in places for rank in range(8)):
        idea = "A worker waits for itself. It has its own part already: leave out its own rank."
    elif places.count("after 0 sent") == places.count("worker ") / 2:
        idea = "All wait and none has sent anything. `send` doesn't wait, so send first, then receive."
    else:
        idea = "Each `receive(source)` needs a `send` by that worker to this one: is the direction the same in both?"
    return f"no worker can go on.\n{places}", idea


def tell(case: Case) -> str:
    first, count = case.tensors[0], len(case.tensors)
    dtype = "" if first.dtype == torch.float32 else f", {str(first.dtype)[6:]}"
    strided = "" if first.is_contiguous() else ", transposed"
    tensors = "; ".join(text if len(text) < 40 else f"{text[:30]} …" for text in map(brief, case.tensors))
    times = ", twice, one sum after the other" if case.times > 1 else ""
    return f"{count} worker{'s' * (count > 1)}, tensors of shape {list(first.shape)}{dtype}{strided}: {tensors}{times}."


MISTAKES = """
That is the mean: the sum is wanted.
= return torch.cat(parts).view(tensor.shape) / size
N, here {N}, needn't divide n, here {n}. `torch.chunk` may return fewer than N parts; `tensor_split` returns N, some of
them shorter or empty.
~ tensor_split(size) => chunk(size)
or = parts = list(tensor.flatten().split(-(-tensor.numel() // size)))
N, here {N}, needn't divide n, here {n}. With n // N elements each, the last ones are in no part: parts may differ by
one in length.
= parts = [tensor.flatten()[i * (tensor.numel() // size) :][: tensor.numel() // size] for i in range(size)]
or = parts = [tensor.flatten()[i * (tensor.numel() // size) :][: tensor.numel() // size] for i in range(size)]
= return torch.cat([*parts, tensor.flatten()[tensor.numel() // size * size :]]).view(tensor.shape)
"""


def about_result(seen: dict, want: dict) -> str:
    """What the first wrong element lacks, or contains twice: element i of worker r is (i + 1) * 10**r."""
    tensors = want["case"].tensors
    name = next(each for each in want if not same(seen.get(each), want[each]))
    got, total = seen[name].flatten(), want[name].flatten()
    if got.dtype != total.dtype:
        return ""
    if len(got) < len(total):
        return "Elements are missing. Each must be in a part, and every worker must get all parts."
    if len(got) > len(total):
        return "Your result has more elements than the tensor. Is there padding to cut off?"
    if seen[name].shape != want[name].shape:
        return "The parts come from the flattened tensor. Give the result its shape back: `.view(tensor.shape)`."
    if torch.allclose(got.double(), total.double(), rtol=0.02):
        return "The elements are nearly right, as if rounded on the way. Send and add in the type of the tensor."
    own = tensors[0].flatten().tolist()
    counts = [str(int(value // one)).zfill(len(tensors))[::-1] for value, one in zip(got.tolist(), own)]
    index = next(index for index, each in enumerate(counts) if set(each) != {"1"} or got[index] % own[index])
    is_mixed = any(len(each) > len(tensors) or set(each) - set("012") for each in counts)
    if is_mixed or any(value % one for value, one in zip(got.tolist(), own)):
        return f"Element {index} contains other elements: is a part added to another one, or put in its place?"
    said = [f"lacks worker {rank}'s" for rank, count in enumerate(counts[index]) if count == "0"]
    said += [f"contains worker {rank}'s twice" for rank, count in enumerate(counts[index]) if count == "2"]
    others = [seen[each].flatten()[index : index + 1] for each in of_each("result", tensors)]
    idea = "One worker adds up each element, once."
    if any(torch.equal(each, total[index : index + 1]) for each in others):
        idea = "Another worker has this sum. It must be passed on, and take the place of this part."
    return f"Element {index} {' and '.join(said)}. {idea}"


def about_sent(seen: dict, want: dict) -> str:
    case, sent = want["case"], [float(each) for each in seen[SENT].split(", ")]
    if case.tensors[0].dtype == torch.bfloat16:
        return "Another type takes more bytes. Send in the type of the tensor."
    if sent.count(max(sent)) == 1:
        return (
            f"Worker {sent.index(max(sent))} sends the most. Let each worker add up one part, all parts as even as "
            "possible, and send its sum to the others."
        )
    if min(sent) >= case.times * (len(sent) - 1) * case.tensors[0].numel():
        return (
            "That is as much as whole tensors. A worker that adds up one part only needs that part from the others, "
            "and a round of a ring has N - 1 steps."
        )
    return (
        "Each element leaves a worker about twice. Flatten the tensor first, so that the parts are as even as possible."
    )


VIEWS = "The caller still uses it. The parts of a tensor are views, so `+=` changes it: cut `tensor.flatten().clone()`."
TASK = Task(
    reference="lessons_lib.serving.all_reduce:all_reduce",
    cases=cases,
    run=run,
    tell=tell,
    known=mistakes(MISTAKES),
    facts=lambda case: {"N": len(case.tensors), "n": case.tensors[0].numel()},
    about={
        **dict.fromkeys(of_each("result", [""] * 8), about_result),
        **dict.fromkeys(of_each("tensor", [""] * 8), VIEWS),
        "the workers that have sent something": "Workers stand for processes. Only `send` leads from one to another: "
        "no variable outside of the function.",
        "what was sent and never received": "What is left over is received in the *next* sum, as if it belonged to "
        "that. Each `send` needs a `receive`.",
        SENT: about_sent,
        "the memory of the result": "Return a new tensor, also if there is nothing to add: `tensor.clone()`.",
    },
)

EXERCISE = TASK.exercise(
    id="16.2",
    title="the sum over all workers",
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
    time_limit=3.0,
)
