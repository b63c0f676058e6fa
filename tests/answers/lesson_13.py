"""Right answers to the exercises of lesson 13, written in other ways than the reference, and wrong ones, most of them as
a change of the reference."""

import torch

from answers import Wrong, rights
from lessons_lib.checks.diagnosis.mistakes import patched
from lessons_lib.checks.registry import get_exercise
from lessons_lib.engine.core import overlapped_step
from lessons_lib.engine.cuda_graphs import GraphStore
from lessons_lib.engine.input_batch import next_tokens
from lessons_lib.engine.plain_sampling import draw_on_device

STORES = """
Shapes, strides and dtypes in place of ids; plain tuples.
- return GraphKey => return addresses, [(each.shape, each.stride(), each.dtype) for each in inputs], settings
- return graph is not None => return size in self.graphs and graph[0] == key
- self.graphs[size] = Graph => self.graphs[size] = key, keeps(), *self.capture(step)
~ self.graphs[size].replay() => self.graphs[size][2]()
~ return self.graphs[size].output => return self.graphs[size][-1]
A text as the key; an old graph goes before the new one is captured.
- return GraphKey => return repr([*map(id, inputs), addresses, settings])
- self.graphs[size] = Graph
+ self.graphs.pop(size, None)
+ kept = keeps()
+ replay, output = self.capture(step)
+ self.graphs[size] = Graph(key, kept, replay, output)
"""
TOKENS = """
The placeholder is one more token of the sequence.
- start, output_ids ... tokens += output_ids
+ ids = list(sequence.prompt_ids) + sequence.output_ids
+ if sequence.num_placeholders:
+     ids.append(-1 - previous_rows[sequence])
+ tokens.extend(ids[sequence.num_computed_tokens : sequence.num_computed_tokens + count])
Token by token.
- start, output_ids ... tokens += output_ids
+ known = dict(enumerate([*sequence.prompt_ids, *sequence.output_ids], start=-sequence.num_computed_tokens))
+ tokens.extend(known[index] if index in known else ~previous_rows[sequence] for index in range(count))
"""
STEPS = """
It processes only if there is something to process.
- if launched ... loop.process(loop.depth
+ step = loop.launch(scheduler_output)
+ if step is None:
+     loop.process(0)
+     return
+ loop.in_flight += [step]
+ if len(loop.in_flight) > loop.depth:
+     loop.process(loop.depth)
It processes before it appends.
- if launched ... loop.process(loop.depth
+ launched = loop.launch(scheduler_output)
+ loop.process(0)
+ if launched:
+     loop.in_flight.append(launched)
+     loop.process(loop.depth)
It drops always.
- if any ... scheduler_output.drop_finished()
+ for victim in scheduler_output.preempted:
+     if victim.num_placeholders:
+         loop.process(0)
+ scheduler_output.drop_finished()
"""
DRAWS = """
Probabilities in place of weights.
= weights = torch.softmax(logits.float() / temperature[:, None], dim=-1)
No race at all: one number for each row, as in lesson 12's `draw`.
- tokens = ... drawn =
+ ends = ((logits - highest) / temperature[:, None]).softmax(dim=-1).cumsum(dim=-1)
+ number = random_numbers(seeds, positions, torch.zeros_like(seeds))[:, None]
+ drawn = (ends <= number * ends[:, -1:]).sum(dim=-1)
In one argmin.
- drawn ... return
+ scores = (highest - logits.float(), -torch.log1p(-numbers) / weights)
+ return torch.where((temperature <= 0).unsqueeze(-1), *scores).argmin(-1)
"""


def for_each_row(*rows):
    """Written for one row, and mapped over all of them."""
    return torch.vmap(lambda *row: draw_on_device(*(each[None] for each in row))[0])(*rows)


def row_after_row(*rows):
    return torch.cat([draw_on_device(*row) for row in zip(*(each.split(1) for each in rows))])


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
        "< if not self.has => if not self.has(size, key): step()": "Only `self.capture(step)` and",
        "~ keeps() => (keeps,)": "holds on to what `keeps()` returned",
        "< self.graphs[size].replay() => keeps()": "Call `keeps` at a capture only",
        "< if not self.has => if not self.has(size, key): self.graphs.clear()": "whatever becomes of other sizes",
        "~ self.graphs[size] => self.graphs[size, str(key)]\n"
        "~ self.graphs.get(size) => self.graphs.get((size, str(key)))": "one for each size",
        "< self.graphs[size] = Graph => self.graphs[size] = Graph(key, keeps(), None, None)": "leaves neither",
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
        "~ return tokens =>     return tokens": NEXT,
        "~ return tokens => return sorted(tokens)": "The order is that of",
        ALL_BODY + "+ sequence.output_ids.append(7)\n+ ...": "Only read the sequence",
    },
    "13.3": {
        "< if launched => loop.process(0)": WAITS,
        "~ any(victim.num_placeholders for victim in scheduler_output.preempted) => scheduler_output.preempted": WAITS,
        "~ loop.depth if launched else 0 => 0": "is still being computed",
        "~ loop.depth if launched else 0 => loop.depth": "If nothing was launched",
        "~ loop.depth if launched else 0 => 1 if launched else 0": DEPTH,
        "~ loop.depth if launched else 0 => loop.depth + 1 if launched else 0": DEPTH,
        "~ in_flight.append => in_flight.appendleft": "The oldest step comes first",
        "- loop.in_flight.append": "Append what `loop.launch` returned",
        "- scheduler_output.drop_finished() => scheduler_output = scheduler_output.drop_finished()": "returns nothing",
        "~ any( => scheduler_output.preempted and all(": "A preempted sequence is computed again",
        "- scheduler_output = loop.schedule() ... loop.process(loop.depth => return": "One call is one turn",
    },
    "13.4": {
        "~ .exp() => .softmax(dim=-1)\n~ temperature > 0, drawn => temperature > -1, drawn": "Where the temperature is 0",
        "~ weights / -torch.log1p(-numbers) => weights / numbers": WEIGHT,
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
        "- return\n+ drawn[temperature == 0] = likeliest[temperature == 0, 0]\n+ return drawn": "a mask as an index",
        "~ , device=logits.device => ": "tensors of several devices",
        "< return => likeliest = logits.sort(dim=-1, descending=True).indices": "sorts the vocabulary",
        "~ (logits - highest) => (logits.float().clamp(min=-1e4) - highest)": "no such token is drawn",
        "~ random_numbers(seeds[:, None], positions[:, None], tokens) => torch.stack([random_numbers(seeds, positions, "
        "token + 0 * seeds) for token in tokens.unbind()], -1)": "A launch for each token",
    },
}
WRONG = {
    id: [Wrong(patch, patched(get_exercise(id).load_reference(), patch, {}), says) for patch, says in changes.items()]
    for id, changes in CHANGED.items()
}
WRONG["13.4"].append(Wrong("row after row", row_after_row, "A launch for each row"))
RIGHT = {
    "13.1": rights(GraphStore, STORES),
    "13.2": rights(next_tokens, TOKENS),
    "13.3": rights(overlapped_step, STEPS),
    "13.4": [*rights(draw_on_device, DRAWS), for_each_row],
}
