"""Right answers to the exercises of lesson 13, written in other ways than the reference, and wrong ones, most of them as
a change of the reference."""

import torch

from answers import Wrong
from lessons_lib.checks.diagnosis.mistakes import patched
from lessons_lib.checks.registry import get_exercise
from lessons_lib.engine.cuda_graphs import Graph, GraphStore
from lessons_lib.engine.stateless_random import random_numbers

# 13.1 GraphStore


class WithLayouts:
    """Shapes, strides and dtypes in place of ids; plain tuples in place of Graph."""

    def __init__(self, capture):
        self.capture = capture
        self.graphs = {}
        self.num_captured = 0

    def key_of(self, inputs, weights, settings):
        layouts = [(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) for tensor in inputs]
        return layouts, [weight.data_ptr() for weight in weights], settings

    def has(self, size, key):
        return size in self.graphs and self.graphs[size][0] == key

    def run(self, size, key, step, keeps):
        if not self.has(size, key):
            replay, output = self.capture(step)
            self.graphs[size] = key, keeps(), replay, output
            self.num_captured += 1
        _, _, replay, output = self.graphs[size]
        replay()
        return output


class DropsFirst(GraphStore):
    def key_of(self, inputs, weights, settings):
        return repr([*map(id, inputs), *(tensor.data_ptr() for tensor in [*weights, *inputs]), settings])

    def run(self, size, key, step, keeps=tuple):
        graph = self.graphs.get(size)
        if graph is None or graph.key != key:
            self.graphs.pop(size, None)
            kept = keeps()
            replay, output = self.capture(step)
            graph = self.graphs[size] = Graph(key, kept, replay, output)
            self.num_captured = self.num_captured + 1
        graph.replay()
        return graph.output


# 13.2 next_tokens


def counts_placeholders(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        ids = list(sequence.prompt_ids) + sequence.output_ids
        if sequence.num_placeholders:
            ids.append(-1 - previous_rows[sequence])
        tokens.extend(ids[sequence.num_computed_tokens : sequence.num_computed_tokens + count])
    return tokens


def token_by_token(scheduler_output, previous_rows):
    def token(sequence, index):
        if index < len(sequence.prompt_ids):
            return sequence.prompt_ids[index]
        index -= len(sequence.prompt_ids)
        return sequence.output_ids[index] if index < len(sequence.output_ids) else ~previous_rows[sequence]

    return [
        token(sequence, sequence.num_computed_tokens + offset)
        for sequence, count in scheduler_output.num_scheduled_tokens.items()
        for offset in range(count)
    ]


def by_start(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        if start == len(sequence.prompt_ids) + len(sequence.output_ids):
            tokens.append(-1 - previous_rows[sequence])
        else:
            tokens += sequence.token_ids[start : start + count]
    return tokens


# 13.3 overlapped_step


def with_counts(loop):
    scheduler_output = loop.schedule()
    lost = [victim for victim in scheduler_output.preempted if victim.num_placeholders > 0]
    if lost:
        loop.process(0)
        scheduler_output.drop_finished()
    step = loop.launch(scheduler_output)
    if step is None:
        loop.process(0)
        return
    loop.in_flight += [step]
    if len(loop.in_flight) > loop.depth:
        loop.process(loop.depth)


def processes_before_it_appends(loop):
    output = loop.schedule()
    if any(victim.num_placeholders for victim in output.preempted):
        loop.process(0)
        output.drop_finished()
    launched = loop.launch(output)
    loop.process(0)
    if launched:
        loop.in_flight.append(launched)
        if not loop.depth:
            loop.process(0)


def drops_always(loop):
    output = loop.schedule()
    for victim in output.preempted:
        if victim.num_placeholders:
            loop.process(0)
    output.drop_finished()
    launched = loop.launch(output)
    loop.in_flight.extend([launched] if launched else [])
    loop.process(loop.depth if launched else 0)


# 13.4 draw_on_device


def times_of(logits, seeds, positions):
    tokens = torch.arange(logits.shape[-1], device=logits.device)
    return -torch.log1p(-random_numbers(seeds[:, None], positions[:, None], tokens))


def chosen(drawn, logits, temperature):
    return torch.where(temperature > 0, drawn, logits.argmax(dim=-1))


def by_softmax(logits, temperature, seeds, positions):
    probabilities = torch.softmax(logits.float() / temperature[:, None], dim=-1)
    return chosen((probabilities / times_of(logits, seeds, positions)).argmax(dim=-1), logits, temperature)


def on_a_line(logits, temperature, seeds, positions):
    """No race at all: one number for each row, as in lesson 12's `draw`."""
    highest = logits.float().amax(dim=-1, keepdim=True)
    ends = ((logits - highest) / temperature[:, None]).softmax(dim=-1).cumsum(dim=-1)
    number = random_numbers(seeds, positions, torch.zeros_like(seeds))[:, None]
    return chosen((ends <= number * ends[:, -1:]).sum(dim=-1), logits, temperature)


def for_each_row(logits, temperature, seeds, positions):
    """Written for one row, and mapped over all of them."""

    def of_row(logits, temperature, seed, position):
        numbers = random_numbers(seed, position, torch.arange(logits.shape[-1], device=logits.device))
        score = (logits.float() - logits.float().max()) / temperature - (-torch.log1p(-numbers)).log()
        return torch.where(temperature > 0, score.argmax(), logits.argmax())

    return torch.vmap(of_row)(logits, temperature, seeds, positions)


def in_one_argmin(logits, temperature, seeds, positions):
    gap = logits.float().max(-1, keepdim=True).values - logits.float()
    scores = (gap / temperature.unsqueeze(-1)).exp() * times_of(logits, seeds, positions)
    return torch.where((temperature <= 0).unsqueeze(-1), gap, scores).argmin(-1)


def row_after_row(logits, temperature, seeds, positions):
    rows = [slice(row, row + 1) for row in range(len(logits))]
    return torch.cat([by_softmax(logits[row], temperature[row], seeds[row], positions[row]) for row in rows])


def token_after_token(logits, temperature, seeds, positions):
    numbers = [random_numbers(seeds, positions, torch.full_like(seeds, token)) for token in range(logits.shape[-1])]
    weights = (logits.float() / temperature[:, None]).softmax(dim=-1)
    return chosen((weights / -torch.log1p(-torch.stack(numbers, -1))).argmax(dim=-1), logits, temperature)


VIEW, ORDER, PLACEHOLDER = "Another view may begin", "The order counts", "The placeholder is −1 − i"
KNOWN, NEXT = "This token is known", "The tokens of each scheduled sequence"
ALL_BODY = "- start, output_ids ... tokens += output_ids\n"
SLICED = (
    ALL_BODY
    + "+ start = sequence.num_computed_tokens\n+ known = sequence.token_ids[start : start + count]\n+ tokens += "
)
WAITS, DEPTH = "While the CPU waits for tokens", "`loop.depth` says how many"
WEIGHT, SCALED = "A token's weight is", "Divide the logits by the temperature"
CHANGED = {  # of the reference: what the check says
    "13.1": {
        "~ [*inputs, *weights] => inputs": "It may get other memory",
        "~ torch.Tensor.data_ptr => id": "The same object may get other memory",
        "~ list(map(id, inputs)) => [(each.shape, each.dtype) for each in inputs]": VIEW,
        "~ list(map(id, inputs)) => [(each.shape, each.stride()) for each in inputs]": VIEW,
        "~ list(map(id, inputs)) => [(each.numel(), each.stride(), each.dtype) for each in inputs]": VIEW,
        "~ list(map(id, inputs)) => [(each.shape, each.is_contiguous(), each.dtype) for each in inputs]": VIEW,
        "~ torch.Tensor.data_ptr => (lambda each: each.untyped_storage().data_ptr())": "its storage: its `data_ptr()`",
        "~ settings) => list(map(id, settings)))": "compare them as values",
        "~ settings) => sorted(map(str, settings)))": "Settings decide",
        "= addresses = sorted(map(torch.Tensor.data_ptr, [*inputs, *weights]))": ORDER,
        "= return hash((tuple(addresses), settings))": "a list has no hash",
        "= return inputs, weights, settings": "Tensors compare their elements",
        "~ *weights] => weights[0], weights[-1]]": "It may get other memory",
        "~ list(map(id, inputs)) => [each.sum().item() for each in weights]": "Replays read the values",
        "~ graph.key == key => hash(graph.key) == hash(key)": "a list has no hash",
        "~ graph = self.graphs.get(size) => graph = self.graphs[size]": "There is no graph of this size yet",
        "~ return self.graphs[size].output => return self.graphs[size]": "a tensor.",
        "= return id(inputs), id(weights), settings": "the lists are other objects",
        "~ list(map(id, inputs)) => [each.tolist() for each in inputs]": "Replays read the values",
        "~ graph.key == key => graph.key is key": "it may be another object",
        "~ self.graphs[size].replay() => pass": "What a capture computes isn't valid",
        "- if not self.has(size, key)\n+ if not self.has(size, key): step()\n+ ...": "Only `self.capture(step)` and",
        "~ keeps() => (keeps,)": "holds on to what `keeps()` returned",
        "- self.graphs[size].replay()\n+ keeps()\n+ ...": "Call `keeps` at a capture only",
        "- if not self.has\n+ if not self.has(size, key): self.graphs.clear()\n+ ...": "whatever becomes of other sizes",
        "~ self.graphs[size] => self.graphs[size, str(key)]\n"
        "~ self.graphs.get(size) => self.graphs.get((size, str(key)))": "one for each size",
        "- self.graphs[size] = Graph\n+ self.graphs[size] = Graph(key, keeps(), None, None)\n+ ...": "leaves neither",
        "~ self.num_captured += 1 => self.num_captured = len(self.graphs)": "captures that succeeded",
    },
    "13.2": {
        SLICED + "known": "All known tokens of this sequence are computed",
        SLICED + "known or [-previous_rows[sequence]]": PLACEHOLDER,
        SLICED + "known or [-1 - list(scheduler_output.num_scheduled_tokens).index(sequence)]": PLACEHOLDER,
        SLICED + "[-1 - previous_rows[sequence]] if sequence in previous_rows and count == 1 else known": KNOWN,
        SLICED
        + "[-1 - previous_rows[sequence]] if start >= len(sequence.prompt_ids) else known": "This one isn't in it",
        SLICED + "sequence.token_ids[start:] or [-1 - previous_rows[sequence]]": NEXT,
        SLICED + "known[:-1] or known or [-1 - previous_rows[sequence]]": NEXT,
        "- tokens += output_ids[max(0, index)": NEXT,
        SLICED + "[known or [-1 - previous_rows[sequence]]]": "One flat list",
        SLICED + "known or [None]": "All known tokens of this sequence are computed",
        "~ return tokens =>     return tokens": NEXT,
        "~ return tokens => return sorted(tokens)": "The order is that of",
        ALL_BODY + "+ sequence.output_ids.append(7)\n+ ...": "Only read the sequence",
    },
    "13.3": {
        "- if launched\n+ loop.process(0)\n+ ...": WAITS,
        "~ any(victim.num_placeholders for victim in scheduler_output.preempted) => scheduler_output.preempted": WAITS,
        "~ loop.depth if launched else 0 => 0": "is still being computed",
        "~ loop.depth if launched else 0 => loop.depth": "If nothing was launched",
        "~ loop.depth if launched else 0 => 1 if launched else 0": DEPTH,
        "~ loop.depth if launched else 0 => loop.depth + 1 if launched else 0": DEPTH,
        "~ in_flight.append => in_flight.appendleft": "The oldest step comes first",
        "- loop.in_flight.append": "Append what `loop.launch` returned",
        "- scheduler_output.drop_finished()\n+ scheduler_output = scheduler_output.drop_finished()": "returns nothing",
        "~ any( => scheduler_output.preempted and all(": "A preempted sequence is computed again",
        "- scheduler_output = loop.schedule() ... loop.process(loop.depth\n+ return": "One call is one turn",
    },
    "13.4": {
        "~ .exp() => .softmax(dim=-1)\n~ temperature > 0, drawn => temperature > -1, drawn": "Where the temperature is 0",
        "~ weights / -torch.log1p(-numbers) => weights / numbers": WEIGHT,
        "~ weights / -torch.log1p(-numbers) => weights * -torch.log1p(-numbers)": WEIGHT,
        "~ positions[:, None] => 0 * positions[:, None]": WEIGHT,
        "~ / temperature[:, None]) => * temperature[:, None])": SCALED,
        "~ / temperature[:, None] => / temperature.clamp(min=0.1)[:, None]": SCALED,
        "~ seeds[:, None], p => 0 * seeds[:, None], p": "its own seed",
        "= numbers = torch.rand(logits.shape)": "all randomness comes from",
        "~ seeds[:, None], positions[:, None] => (seeds + positions)[:, None], 0 * positions[:, None]": "shifted",
        "~ / temperature[:, None] => / temperature.max()": "A row's token depends",
        "~ logits - highest => logits.float()": "overflows to infinity",
        "~ .exp() => .exp().clamp(min=0.01)": "no such token is drawn",
        "~ (logits - highest) / temperature[:, None] => (logits / temperature[:, None].to(logits.dtype)).float()\n"
        "~ .exp() => .softmax(dim=-1)": "These logits are bfloat16",
        "~ weights / -torch.log1p(-numbers) => weights / torch.log(1 - numbers).abs()": "In float32, 1 − 2.4e-9 is 1",
        "~ likeliest[:, 0]) => likeliest)": "The shape should be [20]",
        "~ temperature[:, None] => temperature": "As columns, `[:, None]`",
        "~ .exp() => .exp().nan_to_num(0) if (temperature > 0).any() else logits": "would have to wait for the GPU",
        "- return\n+ drawn[temperature == 0] = likeliest[temperature == 0, 0]\n+ return drawn": "a mask as an index",
        "~ , device=logits.device => ": "tensors of several devices",
        "- return\n+ likeliest = logits.sort(dim=-1, descending=True).indices\n+ ...": "sorts the vocabulary",
        "~ (logits - highest) => (logits.float().clamp(min=-1e4) - highest)": "no such token is drawn",
    },
}
WRONG = {
    "13.4": [
        Wrong("row after row", row_after_row, "A launch for each row"),
        Wrong("token after token", token_after_token, "A launch for each token"),
    ],
}
for each, changes in CHANGED.items():
    right = get_exercise(each).load_reference()
    WRONG[each] = [Wrong(patch, patched(right, patch, {}), says) for patch, says in changes.items()] + WRONG.get(
        each, []
    )
RIGHT = {
    "13.1": [WithLayouts, DropsFirst],
    "13.2": [counts_placeholders, token_by_token, by_start],
    "13.3": [with_counts, processes_before_it_appends, drops_always],
    "13.4": [by_softmax, on_a_line, for_each_row, in_one_argmin],
}
