"""Answers to the exercises of lesson 13: what learners get wrong, and other ways to be right."""

import torch

from answers import Wrong
from lessons_lib.attention.custom_op import replace_placeholders
from lessons_lib.engine.cuda_graphs import Graph, GraphKey, GraphStore
from lessons_lib.engine.input_batch import next_tokens
from lessons_lib.engine.core import overlapped_step
from lessons_lib.engine.stateless_random import random_numbers
from lessons_lib.engine.plain_sampling import draw_on_device
from lessons_lib.scheduling.scheduler import SchedulerOutput

# 13.1 GraphStore


class ReturnsTheStep(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        is_new = not self.has(size, key)
        output = super().run(size, key, step, keeps)
        return step() if is_new else output


class WarmsUp(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            step()
        return super().run(size, key, step, keeps)


class OnlyAddresses(GraphStore):
    def key_of(self, inputs, weights, settings):
        return [tensor.data_ptr() for tensor in [*inputs, *weights]], settings


class OnlyIds(GraphStore):
    def key_of(self, inputs, weights, settings):
        return list(map(id, [*inputs, *weights])), settings


class InputsWithoutAddresses(GraphStore):
    def key_of(self, inputs, weights, settings):
        return list(map(id, inputs)), [weight.data_ptr() for weight in weights], settings


class ForgetsWeights(GraphStore):
    def key_of(self, inputs, weights, settings):
        return [(tensor.data_ptr(), id(tensor)) for tensor in inputs], settings


class ForgetsSettings(GraphStore):
    def key_of(self, inputs, weights, settings):
        return [(tensor.data_ptr(), id(tensor)) for tensor in inputs], [weight.data_ptr() for weight in weights]


class ForgetsStrides(GraphStore):
    def key_of(self, inputs, weights, settings):
        return (
            [(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in inputs],
            [weight.data_ptr() for weight in weights],
            settings,
        )


class CountsElements(GraphStore):
    def key_of(self, inputs, weights, settings):
        return (
            [(tensor.data_ptr(), tensor.numel(), tensor.stride(), tensor.dtype) for tensor in inputs],
            [weight.data_ptr() for weight in weights],
            settings,
        )


class ReturnsAnEarlyCopy(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            replay, output = self.capture(step)
            self.graphs[size] = Graph(key, keeps(), replay, output.clone())
            self.num_captured += 1
        self.graphs[size].replay()
        return self.graphs[size].output


class ForgetsDtype(GraphStore):
    def key_of(self, inputs, weights, settings):
        return (
            [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in inputs],
            [weight.data_ptr() for weight in weights],
            settings,
        )


class TensorsAsKey(GraphStore):
    def key_of(self, inputs, weights, settings):
        return inputs, weights, settings


class ValuesAsKey(GraphStore):
    def key_of(self, inputs, weights, settings):
        tensors = [*inputs, *weights]
        return [(id(tensor), tensor.data_ptr(), tensor.tolist()) for tensor in tensors], settings


class IdsOfLists(GraphStore):
    def key_of(self, inputs, weights, settings):
        return id(inputs), id(weights), settings


class SettingsById(GraphStore):
    def key_of(self, inputs, weights, settings):
        return super().key_of(inputs, weights, tuple(map(id, settings)))


class SetOfAddresses(GraphStore):
    def key_of(self, inputs, weights, settings):
        return {
            (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) for tensor in [*inputs, *weights]
        }, settings


class Storages(GraphStore):
    def key_of(self, inputs, weights, settings):
        tensors = [*inputs, *weights]
        return [
            (each.untyped_storage().data_ptr(), each.shape, each.stride(), each.dtype) for each in tensors
        ], settings


class StoragesAndIds(GraphStore):
    def key_of(self, inputs, weights, settings):
        return [(each.untyped_storage().data_ptr(), id(each)) for each in [*inputs, *weights]], settings


class FirstInputOnly(GraphStore):
    def key_of(self, inputs, weights, settings):
        return inputs[0].data_ptr(), id(inputs[0]), [weight.data_ptr() for weight in weights], settings


class NoKey(GraphStore):
    def key_of(self, inputs, weights, settings):
        GraphKey([tensor.data_ptr() for tensor in inputs], list(map(id, inputs)), settings)


class NeverCompares(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if size not in self.graphs:
            self.graphs[size] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
        self.graphs[size].replay()
        return self.graphs[size].output


class AlwaysCaptures(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        self.graphs[size] = Graph(key, keeps(), *self.capture(step))
        self.num_captured += 1
        self.graphs[size].replay()
        return self.graphs[size].output


class CaptureWithoutReplay(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if self.has(size, key):
            self.graphs[size].replay()
        else:
            self.graphs[size] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
        return self.graphs[size].output


class ReplaysOnlyAtCapture(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            self.graphs[size] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
            self.graphs[size].replay()
        return self.graphs[size].output


class ReplaysTwice(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            self.graphs[size] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
            self.graphs[size].replay()
        self.graphs[size].replay()
        return self.graphs[size].output


class RunsTheStep(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        return step()


class KeepsNothing(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        return super().run(size, key, step, lambda: keeps() and ())


class KeepsTheFunction(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        return super().run(size, key, step, lambda: (keeps,))


class KeepsTheLatest(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            self.graphs[size] = Graph(key, (), *self.capture(step))
            self.num_captured += 1
        self.kept = keeps()
        self.graphs[size].replay()
        return self.graphs[size].output


class DropsAllGraphs(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if size in self.graphs and self.graphs[size].key != key:
            self.graphs.clear()
        return super().run(size, key, step, keeps)


class KeepsOldGraphs(GraphStore):
    def has(self, size, key):
        return (size, key) in self.graphs

    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            self.graphs[size, key] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
        self.graphs[size, key].replay()
        return self.graphs[size, key].output


class StoresByBoth(GraphStore):
    def key_of(self, inputs, weights, settings):
        return repr(super().key_of(inputs, weights, settings))

    def run(self, size, key, step, keeps=tuple):
        if (size, key) not in self.graphs:
            self.graphs[size, key] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
        self.graphs[size, key].replay()
        return self.graphs[size, key].output


class KeepsAllTensors(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            self.kept = [*getattr(self, "kept", []), keeps()]
        return super().run(size, key, step, keeps)


class OneGraph(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            self.graphs.clear()
        return super().run(size, key, step, keeps)


class IgnoresSize(GraphStore):
    def has(self, size, key):
        return super().has(0, key)

    def run(self, size, key, step, keeps=tuple):
        return super().run(0, key, step, keeps)


class SetsTheFieldsLater(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            graph = self.graphs[size] = Graph(key, keeps(), None, None)
            graph.replay, graph.output = self.capture(step)
            self.num_captured += 1
        self.graphs[size].replay()
        return self.graphs[size].output


class NotesTheKeyFirst(GraphStore):
    def __init__(self, capture):
        super().__init__(capture)
        self.keys = {}

    def has(self, size, key):
        return self.keys.get(size) == key

    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            self.keys[size] = key
            self.graphs[size] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
        self.graphs[size].replay()
        return self.graphs[size].output


class NotesAnUnfinishedGraph(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            self.graphs[size] = Graph(key, keeps(), None, None)
            self.graphs[size] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
        self.graphs[size].replay()
        return self.graphs[size].output


class SwallowsErrors(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        try:
            return super().run(size, key, step, keeps)
        except MemoryError:
            return step()


class HashAsKey(GraphStore):
    def key_of(self, inputs, weights, settings):
        described = tuple((tensor.data_ptr(), id(tensor)) for tensor in inputs)
        return hash((described, tuple(weight.data_ptr() for weight in weights), settings))


class SwallowsRuntimeErrors(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        try:
            return super().run(size, key, step, keeps)
        except RuntimeError:  # "then without a graph"
            return step()


class CountsNothing(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        output = super().run(size, key, step, keeps)
        self.num_captured = 0
        return output


class HasOnlySize(GraphStore):
    def has(self, size, key):
        return size in self.graphs

    def run(self, size, key, step, keeps=tuple):
        if not (size in self.graphs and self.graphs[size].key == key):
            self.graphs[size] = Graph(key, keeps(), *self.capture(step))
            self.num_captured += 1
        self.graphs[size].replay()
        return self.graphs[size].output


class ReturnsReplay(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        super().run(size, key, step, keeps)
        return self.graphs[size].replay()


class FirstOutputOfTheStep(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if self.has(size, key):
            return super().run(size, key, step, keeps)
        self.graphs[size] = Graph(key, keeps(), *self.capture(step))
        self.num_captured += 1
        return step()


class DropsOtherSizes(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if any(graph.key != key for graph in self.graphs.values()):
            self.graphs.clear()
        return super().run(size, key, step, keeps)


class CountsFailures(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        if not self.has(size, key):
            self.num_captured += 1
            self.graphs[size] = Graph(key, keeps(), *self.capture(step))
        self.graphs[size].replay()
        return self.graphs[size].output


class CountsRuns(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        output, self.runs = super().run(size, key, step, keeps), getattr(self, "runs", 0) + 1
        self.num_captured = self.runs
        return output


class CountsGraphs(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        output = super().run(size, key, step, keeps)
        self.num_captured = len(self.graphs)
        return output


class SameObject(GraphStore):
    def has(self, size, key):
        return size in self.graphs and self.graphs[size].key is key


class LargerGraph(GraphStore):
    def run(self, size, key, step, keeps=tuple):
        larger = [other for other in self.graphs if other > size and self.has(other, key)]
        return super().run(size if self.has(size, key) else min(larger, default=size), key, step, keeps)


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


class KeyAsText(GraphStore):
    def key_of(self, inputs, weights, settings):
        return repr(
            [[(id(tensor), tensor.data_ptr()) for tensor in inputs], [each.data_ptr() for each in weights], settings]
        )


class IdsOfAll(GraphStore):
    def key_of(self, inputs, weights, settings):
        return tuple((id(tensor), tensor.data_ptr()) for tensor in (*inputs, *weights)), list(settings)


class DropsFirst(GraphStore):
    def has(self, size, key):
        try:
            return self.graphs[size].key == key
        except KeyError:
            return False

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


def tokens_of(sequence, count, previous_rows):
    start = sequence.num_computed_tokens
    return sequence.token_ids[start : start + count] or [-1 - previous_rows[sequence]]


def a_default_that_grows():
    def next_tokens(scheduler_output, previous_rows, ids=[]):  # noqa: B006
        for sequence, count in scheduler_output.num_scheduled_tokens.items():
            ids += tokens_of(sequence, count, previous_rows)
        return ids

    return next_tokens


def newest_first():
    ids = []

    def next_tokens(scheduler_output, previous_rows):
        scheduled = scheduler_output.num_scheduled_tokens.items()
        ids[:0] = [token for each, count in scheduled for token in tokens_of(each, count, previous_rows)]
        return ids

    return next_tokens


def one_token_is_a_decode(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        if count == 1 and not sequence.num_placeholders:
            tokens.append(sequence.token_ids[-1])
        else:
            tokens += tokens_of(sequence, count, previous_rows)
    return tokens


def last_known(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        known = sequence.token_ids[start : start + count]
        tokens += known or [sequence.token_ids[-1]]
    return tokens


def minus_i(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        known = sequence.token_ids[start : start + count]
        tokens += known or [-previous_rows[sequence]]
    return tokens


def always_minus_one(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        tokens += sequence.token_ids[start : start + count] or [-1]
    return tokens


def row_of_this_step(scheduler_output, previous_rows):
    tokens = []
    for row, (sequence, count) in enumerate(scheduler_output.num_scheduled_tokens.items()):
        start = sequence.num_computed_tokens
        tokens += sequence.token_ids[start : start + count] or [-1 - row]
    return tokens


def all_in_flight_wait(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        if sequence in previous_rows:
            tokens.append(-1 - previous_rows[sequence])
        else:
            tokens += sequence.token_ids[start : start + count]
    return tokens


def decodes_in_flight_wait(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        if count == 1 and sequence in previous_rows:
            tokens.append(-1 - previous_rows[sequence])
        else:
            tokens += sequence.token_ids[start : start + count]
    return tokens


def output_in_flight_waits(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        if start >= len(sequence.prompt_ids) and sequence in previous_rows:
            tokens.append(-1 - previous_rows[sequence])
        else:
            tokens += sequence.token_ids[start : start + count]
    return tokens


def from_the_start(scheduler_output, previous_rows):
    return [
        token
        for sequence, count in scheduler_output.num_scheduled_tokens.items()
        for token in sequence.token_ids[:count]
    ]


def all_uncomputed(scheduler_output, previous_rows):
    tokens = []
    for sequence in scheduler_output.num_scheduled_tokens:
        tokens += sequence.token_ids[sequence.num_computed_tokens :] or [-1 - previous_rows[sequence]]
    return tokens


def newest_output(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        if sequence.num_placeholders:
            tokens.append(-1 - previous_rows[sequence])
        elif sequence.output_ids:
            tokens.append(sequence.output_ids[-1])
        else:
            tokens += sequence.prompt_ids[start : start + count]
    return tokens


def either_prompt_or_output(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        index = start - len(sequence.prompt_ids)
        if index < 0:
            tokens += sequence.prompt_ids[start : start + count]
        elif index < len(sequence.output_ids):
            tokens += sequence.output_ids[index : index + count]
        else:
            tokens.append(-1 - previous_rows[sequence])
    return tokens


def index_in_the_output(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        if start < len(sequence.prompt_ids):
            tokens += sequence.prompt_ids[start : start + count]
        else:
            tokens += sequence.output_ids[start : start + count] or [-1 - previous_rows.get(sequence, 0)]
    return tokens


def leaves_placeholders_out(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        tokens += sequence.token_ids[start : start + count]
    return tokens


def appends_placeholders(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        if sequence.num_placeholders:
            sequence.output_ids.append(-1 - previous_rows[sequence])
        start = sequence.num_computed_tokens
        tokens += sequence.token_ids[start : start + count]
    return tokens


def list_of_lists(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        tokens.append(sequence.token_ids[start : start + count] or [-1 - previous_rows[sequence]])
    return tokens


def as_a_tensor(scheduler_output, previous_rows):
    return torch.tensor(next_tokens(scheduler_output, previous_rows))


def always_looks_up(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start, placeholder = sequence.num_computed_tokens, -1 - previous_rows[sequence]
        tokens += sequence.token_ids[start : start + count] or [placeholder]
    return tokens


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


def by_slices(scheduler_output, previous_rows):
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        known = sequence.token_ids[start : start + count]
        tokens += known
        if len(known) < count:
            tokens.append(-1 - previous_rows[sequence])
    return tokens


def by_position_in_flight(scheduler_output, previous_rows):
    in_flight = list(previous_rows)
    tokens = []
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        start = sequence.num_computed_tokens
        if start == len(sequence.prompt_ids) + len(sequence.output_ids):
            tokens.append(-1 - in_flight.index(sequence))
        else:
            tokens += sequence.token_ids[start : start + count]
    return tokens


def order_in_flight(scheduler_output, previous_rows):
    counts = scheduler_output.num_scheduled_tokens
    order = [
        *(each for each in previous_rows if each in counts),
        *(each for each in counts if each not in previous_rows),
    ]
    return next_tokens(SchedulerOutput({each: counts[each] for each in order}), previous_rows)


def counts_as_computed(scheduler_output, previous_rows):
    ids = next_tokens(scheduler_output, previous_rows)
    for sequence, count in scheduler_output.num_scheduled_tokens.items():
        sequence.num_computed_tokens += count
    return ids


def extends_the_prompt(scheduler_output, previous_rows):
    ids = next_tokens(scheduler_output, previous_rows)
    for sequence in scheduler_output.num_scheduled_tokens:
        tokens = sequence.prompt_ids
        tokens += sequence.output_ids
    return ids


# 13.4 replace_placeholders


def without_clamp(input_ids, previous_tokens):
    return torch.where(input_ids < 0, previous_tokens[-1 - input_ids], input_ids)


def index_is_minus_id(input_ids, previous_tokens):
    index = (-input_ids).clamp(min=0, max=len(previous_tokens) - 1)
    return torch.where(input_ids < 0, previous_tokens[index], input_ids)


def from_the_end(input_ids, previous_tokens):
    return torch.where(input_ids < 0, previous_tokens[input_ids.clamp(max=-1)], input_ids)


def zero_too(input_ids, previous_tokens):
    index = (-1 - input_ids).clamp(min=0)
    return torch.where(input_ids <= 0, previous_tokens[index], input_ids)


def only_minus_one(input_ids, previous_tokens):
    return torch.where(input_ids == -1, previous_tokens[0], input_ids)


def in_order(input_ids, previous_tokens):
    place = ((input_ids < 0).cumsum(0) - 1).clamp(min=0, max=len(previous_tokens) - 1)
    return torch.where(input_ids < 0, previous_tokens[place], input_ids)


def with_a_mask(input_ids, previous_tokens):
    result = input_ids.clone()
    mask = input_ids < 0
    result[mask] = previous_tokens[-1 - input_ids[mask]]
    return result


def in_place(input_ids, previous_tokens):
    index = (-1 - input_ids).clamp(min=0)
    input_ids.copy_(torch.where(input_ids < 0, previous_tokens[index], input_ids))
    return input_ids


def with_a_loop(input_ids, previous_tokens):
    return torch.tensor([int(previous_tokens[-1 - id]) if id < 0 else id for id in input_ids.tolist()])


def with_an_if(input_ids, previous_tokens):
    return replace_placeholders(input_ids, previous_tokens) if (input_ids < 0).any() else input_ids.clone()


def as_floats(input_ids, previous_tokens):
    return replace_placeholders(input_ids, previous_tokens).float()


def plainly_minus_id(input_ids, previous_tokens):
    return torch.where(input_ids < 0, previous_tokens[(-input_ids).clamp(min=0)], input_ids)


def other_way_round(input_ids, previous_tokens):
    index = (-1 - input_ids).clamp(min=0)
    return torch.where(input_ids < 0, input_ids, previous_tokens[index])


def only_replaced(input_ids, previous_tokens):
    return previous_tokens[-1 - input_ids[input_ids < 0]]


def by_gather(input_ids, previous_tokens):
    waits = input_ids < 0
    return previous_tokens.gather(0, torch.where(waits, -1 - input_ids, 0)).where(waits, input_ids)


def by_not(input_ids, previous_tokens):
    found = torch.index_select(previous_tokens, 0, torch.relu(~input_ids))
    return found * (input_ids < 0) + input_ids * (input_ids >= 0)


def one_table(input_ids, previous_tokens):
    both = torch.cat([previous_tokens, input_ids])
    own = torch.arange(len(input_ids), device=input_ids.device) + len(previous_tokens)
    return both[torch.where(input_ids < 0, -1 - input_ids, own)]


def clamped_at_the_ids(input_ids, previous_tokens):
    index = (-1 - input_ids).clamp(0, len(input_ids) - 1)
    return torch.where(input_ids < 0, previous_tokens[index], input_ids)


def on_the_cpu(input_ids, previous_tokens):
    both = torch.cat([previous_tokens, input_ids])
    return both[torch.where(input_ids < 0, -1 - input_ids, torch.arange(len(input_ids)) + len(previous_tokens))]


def known_minus_one(input_ids, previous_tokens):
    index = -1 - torch.minimum(input_ids, torch.full_like(input_ids, -1))
    return torch.where(input_ids >= 0, input_ids, previous_tokens.take(index))


# 13.7 draw_on_device


def numbers_for(logits, seeds, positions):
    return random_numbers(seeds[:, None], positions[:, None], torch.arange(logits.shape[-1], device=logits.device))


def scaled(logits, temperature):
    logits = logits.float()
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperature[:, None]


def exponential(numbers):
    return -torch.log1p(-numbers)


def chosen(drawn, logits, temperature):
    return torch.where(temperature > 0, drawn, logits.argmax(dim=-1))


def racing(score):
    """An answer that draws the token with the highest score(logits, temperature, numbers)."""

    def draws(logits, temperature, seeds, positions):
        scores = score(logits.float(), temperature[:, None], numbers_for(logits, seeds, positions))
        return chosen(scores.argmax(dim=-1), logits, temperature)

    return draws


def draws_the_likeliest(logits, temperature, seeds, positions):
    return logits.argmax(dim=-1)


def draws_at_zero_too(logits, temperature, seeds, positions):
    numbers = numbers_for(logits, seeds, positions)
    return (scaled(logits, temperature).softmax(dim=-1) / exponential(numbers)).argmax(dim=-1)


def draws_at_a_small_temperature(logits, temperature, seeds, positions):
    return by_softmax(logits, temperature.clamp(min=0.9), seeds, positions)


def decides_for_the_batch(logits, temperature, seeds, positions):
    if (temperature == 0).all():
        return logits.argmax(dim=-1)
    return by_softmax(logits, temperature, seeds, positions)


def greedy_by_mask(logits, temperature, seeds, positions):
    tokens = by_softmax(logits, temperature, seeds, positions)
    greedy = temperature == 0
    tokens[greedy] = logits[greedy].argmax(dim=-1)
    return tokens


def reads_the_temperature(logits, temperature, seeds, positions):
    if temperature.max().item() == 0:
        return logits.argmax(dim=-1)
    return by_softmax(logits, temperature, seeds, positions)


def by_lists(logits, temperature, seeds, positions):
    rows = zip(logits, temperature.tolist(), seeds, positions)
    ids = torch.arange(logits.shape[-1])
    tokens = [
        row.argmax() if not t else ((row / t).softmax(-1) / exponential(random_numbers(s, p, ids))).argmax()
        for row, t, s, p in rows
    ]
    return torch.stack(tokens)


def by_multinomial(logits, temperature, seeds, positions):
    probabilities = scaled(logits, temperature.clamp(min=1e-6)).softmax(dim=-1)
    return chosen(torch.multinomial(probabilities, 1)[:, 0], logits, temperature)


without_temperature = racing(lambda logits, temperature, numbers: logits.softmax(-1) / exponential(numbers))
times_temperature = racing(lambda x, temperature, numbers: (x * temperature).softmax(-1) / exponential(numbers))
divides_by_the_number = racing(lambda x, temperature, numbers: (x / temperature).softmax(-1) / numbers)
multiplies_by_the_number = racing(lambda x, temperature, numbers: (x / temperature).softmax(-1) * numbers)
largest_time = racing(lambda x, temperature, numbers: exponential(numbers) / (x / temperature).softmax(-1))
multiplies_time = racing(lambda x, temperature, numbers: -exponential(numbers) * -(x / temperature).softmax(-1))
logits_race = racing(lambda x, temperature, numbers: x / temperature / exponential(numbers))
adds_the_number = racing(lambda x, temperature, numbers: x / temperature + numbers)
overflows = racing(lambda x, temperature, numbers: (x / temperature).exp() / exponential(numbers))
lowered_by_the_smallest = racing(
    lambda x, temperature, numbers: ((x - x.amin(-1, keepdim=True)) / temperature).exp() / exponential(numbers)
)
clamps_logits = racing(
    lambda x, temperature, numbers: (
        ((x - x.amax(-1, keepdim=True)).clamp(min=-5) / temperature).exp() / exponential(numbers)
    )
)


def without_position(logits, temperature, seeds, positions):
    return by_softmax(logits, temperature, seeds, torch.zeros_like(positions))


def without_seed(logits, temperature, seeds, positions):
    return by_softmax(logits, temperature, torch.zeros_like(seeds), positions)


def row_as_seed(logits, temperature, seeds, positions):
    return by_softmax(logits, temperature, seeds + torch.arange(len(seeds), device=seeds.device), positions)


def hashes_the_sum(logits, temperature, seeds, positions):
    return by_softmax(logits, temperature, seeds + positions, torch.zeros_like(positions))


def hashes_the_difference(logits, temperature, seeds, positions):
    return by_softmax(logits, temperature, seeds - positions, torch.zeros_like(positions))


def nearly_zero(logits, temperature, seeds, positions):
    numbers = numbers_for(logits, seeds, positions)
    return (scaled(logits, temperature.clamp(min=1e-6)).exp() / exponential(numbers)).argmax(dim=-1)


def token_after_token(logits, temperature, seeds, positions):
    numbers = [random_numbers(seeds, positions, torch.full_like(seeds, token)) for token in range(logits.shape[-1])]
    scores = scaled(logits, temperature).exp() / exponential(torch.stack(numbers, dim=-1))
    return chosen(scores.argmax(dim=-1), logits, temperature)


log_probabilities = racing(lambda x, temperature, numbers: (x / temperature).log_softmax(-1) / exponential(numbers))


def largest_product_is_last(logits, temperature, seeds, positions):
    times = exponential(numbers_for(logits, seeds, positions))
    return chosen((scaled(logits, temperature).exp() * times).argmin(dim=-1), logits, temperature)


def for_each_row(logits, temperature, seeds, positions):
    """Written for one row, and mapped over all of them."""

    def of_row(logits, temperature, seed, position):
        numbers = random_numbers(seed, position, torch.arange(logits.shape[-1], device=logits.device))
        score = (logits.float() - logits.float().max()) / temperature - exponential(numbers).log()
        return torch.where(temperature > 0, score.argmax(), logits.argmax())

    return torch.vmap(of_row)(logits, temperature, seeds, positions)


def in_one_argmin(logits, temperature, seeds, positions):
    logits = logits.float()
    gap = logits.max(-1, keepdim=True).values - logits
    cold = (temperature <= 0).unsqueeze(-1)
    scores = (gap / temperature.unsqueeze(-1)).exp() * exponential(numbers_for(logits, seeds, positions))
    return torch.where(cold, gap, scores).argmin(-1)


def sorts_first(logits, temperature, seeds, positions):
    values, tokens = logits.float().sort(dim=-1, descending=True)
    numbers = random_numbers(seeds[:, None], positions[:, None], tokens)
    winner = (scaled(values, temperature).exp() / exponential(numbers)).argmax(dim=-1)
    return chosen(tokens.gather(1, winner[:, None])[:, 0], logits, temperature)


def row_after_row(logits, temperature, seeds, positions):
    rows = [slice(row, row + 1) for row in range(len(logits))]
    return torch.cat([by_softmax(logits[row], temperature[row], seeds[row], positions[row]) for row in rows])


def tokens_on_the_cpu(logits, temperature, seeds, positions):
    numbers = random_numbers(seeds[:, None], positions[:, None], torch.arange(logits.shape[-1]))
    return chosen((scaled(logits, temperature).exp() / exponential(numbers)).argmax(dim=-1), logits, temperature)


def as_a_column(logits, temperature, seeds, positions):
    return by_softmax(logits, temperature, seeds, positions)[:, None]


def as_int32(logits, temperature, seeds, positions):
    return by_softmax(logits, temperature, seeds, positions).int()


def as_a_list_of_tokens(logits, temperature, seeds, positions):
    return list(by_softmax(logits, temperature, seeds, positions))


def lowers_in_place(logits, temperature, seeds, positions):
    logits -= logits.amax(dim=-1, keepdim=True)
    return by_softmax(logits, temperature, seeds, positions)


def rounds_one_minus_u(logits, temperature, seeds, positions):
    times = -torch.log(1 - numbers_for(logits, seeds, positions))
    return chosen((times.log() - scaled(logits, temperature)).argmin(dim=-1), logits, temperature)


def in_bfloat16(logits, temperature, seeds, positions):
    scores = logits / torch.where(temperature > 0, temperature, 1.0).to(logits.dtype)[:, None]
    times = exponential(numbers_for(logits, seeds, positions))
    return chosen((scores - times.log()).argmax(dim=-1), logits, temperature)


def softmax_of_a_column(logits, temperature, seeds, positions):
    weights = (logits.float() / temperature[:, None]).softmax(dim=0)
    return chosen((exponential(numbers_for(logits, seeds, positions)) / weights).argmin(dim=-1), logits, temperature)


def clamps_low_logits(logits, temperature, seeds, positions):
    return draw_on_device(logits.clamp(min=-100), temperature, seeds, positions)


def by_gumbel(logits, temperature, seeds, positions):
    gumbel = -torch.log(-torch.log(numbers_for(logits, seeds, positions)))
    return chosen((scaled(logits, temperature) + gumbel).argmax(dim=-1), logits, temperature)


def by_softmax(logits, temperature, seeds, positions):
    probabilities = torch.softmax(logits.float() / temperature[:, None], dim=-1)
    times = exponential(numbers_for(logits, seeds, positions))
    return chosen((probabilities / times).argmax(dim=-1), logits, temperature)


def smallest_time(logits, temperature, seeds, positions):
    probabilities = torch.softmax(logits.double() / temperature[:, None].double(), dim=-1)
    times = exponential(numbers_for(logits, seeds, positions)).double() / probabilities
    return torch.where(temperature == 0, logits.argmax(dim=-1), times.argmin(dim=-1))


def by_log_number(logits, temperature, seeds, positions):
    times = -numbers_for(logits, seeds, positions).log()
    return chosen((scaled(logits, temperature).exp() / times).argmax(dim=-1), logits, temperature)


def on_a_line(logits, temperature, seeds, positions):
    """No race at all: one number for each row, as in lesson 12's `draw`."""
    probabilities = scaled(logits, temperature).softmax(dim=-1)
    number = random_numbers(seeds, positions, torch.zeros_like(seeds))[:, None]
    ends = probabilities.cumsum(dim=-1)
    return chosen((ends <= number * ends[:, -1:]).sum(dim=-1), logits, temperature)


def with_safe_temperature(logits, temperature, seeds, positions):
    is_greedy = temperature == 0
    safe = temperature.masked_fill(is_greedy, 1.0)
    scores = scaled(logits, safe) - exponential(numbers_for(logits, seeds, positions)).log()
    return torch.where(is_greedy[:, None], logits.float(), scores).argmax(dim=-1)


# 13.3 overlapped_step


def loop_with(
    loses=lambda loop, output: any(victim.num_placeholders for victim in output.preempted),
    drops=lambda output: output.drop_finished(),
    keeps=lambda loop, launched: launched and loop.in_flight.append(launched),
    ends=lambda loop, launched: loop.process(loop.depth if launched else 0),
):
    """The reference with one part made another way."""

    def overlapped_step(loop):
        output = loop.schedule()
        if loses(loop, output):
            loop.process(0)
            drops(output)
        launched = loop.launch(output)
        keeps(loop, launched)
        ends(loop, launched)

    return overlapped_step


def reads_first(loop):
    loop.process(0)
    if launched := loop.launch(loop.schedule()):
        loop.in_flight.append(launched)


def launches_twice(loop):
    overlapped_step(loop)
    overlapped_step(loop)


def launches_nothing(loop):
    loop.launch(None)


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


WRONG = {
    "13.3": [
        Wrong("one after the other", loop_with(ends=lambda loop, launched: loop.process(0)), "has just been launched"),
        Wrong("reads first", reads_first, "Launch the next step first"),
        Wrong("never waits for victims", loop_with(loses=lambda *_: False), "one of its tokens was in flight"),
        Wrong("keeps what has finished", loop_with(drops=lambda output: None), "although it has finished"),
        Wrong("keeps None", loop_with(keeps=lambda loop, step: loop.in_flight.append(step)), "contains None"),
        Wrong("keeps nothing", loop_with(keeps=lambda *_: None), "Append each step that you launch"),
        Wrong("a depth of 1", loop_with(ends=lambda loop, step: loop.process(1 if step else 0)), "If it is 0, none"),
        Wrong(
            "never reads the last",
            loop_with(ends=lambda loop, step: loop.process(loop.depth)),
            "If nothing was launched, nothing is computed meanwhile",
        ),
        Wrong("never processes", loop_with(ends=lambda *_: None), "call 2 should do: launch 2, read 1"),
        Wrong("processes the step", loop_with(ends=lambda loop, step: loop.process(step)), "It takes a number"),
        Wrong("launches without a schedule", launches_nothing, "It takes what `loop.schedule()` returned"),
        Wrong("launches twice", launches_twice, "your turn scheduled twice"),
        Wrong("does nothing", lambda loop: None, "One call is one turn"),
    ],
    "13.1": [
        Wrong("returns a call of the step after a capture", ReturnsTheStep, "your code called `step` itself"),
        Wrong("swallows RuntimeErrors", SwallowsRuntimeErrors, "the RuntimeError should go on to the caller"),
        Wrong("only addresses", OnlyAddresses, "The address is the same, the shape isn't"),
        Wrong("only ids", OnlyIds, "a weight was moved"),
        Wrong("ids of inputs, addresses of weights", InputsWithoutAddresses, "the old memory of a tensor"),
        Wrong("forgets weights", ForgetsWeights, "Are all weights in your key"),
        Wrong("a hash as the key", HashAsKey, "`settings` may contain lists"),
        Wrong("forgets settings", ForgetsSettings, "Settings decide which kernels run"),
        Wrong("forgets strides", ForgetsStrides, "as long as the graph holds on to that input"),
        Wrong("counts elements", CountsElements, "Is the shape itself in your key"),
        Wrong("an early copy of the output", ReturnsAnEarlyCopy, "a copy that was made before it"),
        Wrong("forgets dtypes", ForgetsDtype, "as int32"),
        Wrong("tensors as the key", TensorsAsKey, "Tensors compare their elements"),
        Wrong("values in the key", ValuesAsKey, "A replay reads the values"),
        Wrong("ids of the lists", IdsOfLists, "The lists are new at each call"),
        Wrong("settings by id", SettingsById, "Settings are values"),
        Wrong("a set of addresses", SetOfAddresses, "their order isn't"),
        Wrong("storages", Storages, "is now `buffer[4:]`"),
        Wrong("storages and ids", StoragesAndIds, "the storage that it shares with others"),
        Wrong("the first input only", FirstInputOnly, "Are all inputs in your key?"),
        Wrong("no key", NoKey, "`key_of` returned None"),
        Wrong("never compares", NeverCompares, "it computes the old step"),
        Wrong("always captures", AlwaysCaptures, "A replay is all that's needed"),
        Wrong("a capture without a replay", CaptureWithoutReplay, "A capture only records"),
        Wrong("replays only at the capture", ReplaysOnlyAtCapture, "replayed at every run"),
        Wrong("replays twice", ReplaysTwice, "replayed it 2 times"),
        Wrong("runs the step", RunsTheStep, "should be 1 capture by now; yours made 0"),
        Wrong("keeps nothing", KeepsNothing, "what it returned was dropped"),
        Wrong("keeps the function", KeepsTheFunction, "`keeps()` wasn't called"),
        Wrong("keeps the latest only", KeepsTheLatest, '`run(4, "B", …)`'),
        Wrong("drops all graphs", DropsAllGraphs, "Where did the graph of size 4 go?"),
        Wrong("keeps old graphs", KeepsOldGraphs, "Is the key part of what you store graphs by?"),
        Wrong("stores by size and key, has by size", StoresByBoth, "Does `run` store the graph under its size"),
        Wrong("keeps the tensors of all graphs", KeepsAllTensors, "nothing of the old one stays"),
        Wrong("one graph for all sizes", OneGraph, "Each size keeps its graph"),
        Wrong("ignores the size", IgnoresSize, "Equal keys don't make sizes equal"),
        Wrong("sets the fields later", SetsTheFieldsLater, "This object is frozen"),
        Wrong("notes the key first", NotesTheKeyFirst, "must not be noted"),
        Wrong("an unfinished graph", NotesAnUnfinishedGraph, 'after the capture that failed, `has(2, "B")` is True'),
        Wrong("swallows errors", SwallowsErrors, "should go on to the caller"),
        Wrong("counts nothing", CountsNothing, "`num_captured` should be 1"),
        Wrong("has looks at the size only", HasOnlySize, '`has(2, "B")` should be False'),
        Wrong("returns what replay returns", ReturnsReplay, "the graph's output, a tensor"),
        Wrong("the first output from the step itself", FirstOutputOfTheStep, "captured, and never replayed"),
        Wrong("drops graphs of other sizes", DropsOtherSizes, "the graph of size 2 is gone"),
        Wrong("counts captures that fail", CountsFailures, "Count after it, not before"),
        Wrong("counts runs", CountsRuns, "Count captures, not runs"),
        Wrong("counts graphs", CountsGraphs, "takes the place of an older graph"),
        Wrong("compares keys with is", SameObject, "Compare keys with `==`"),
        Wrong("replays a larger graph", LargerGraph, "Don't replay a larger one"),
    ],
    "13.2": [
        Wrong(
            "a default that grows", a_default_that_grows(), "begins with the tokens of an earlier call, [11, 12, 13,"
        ),
        Wrong("one list, newest first", newest_first(), "ends with the tokens of an earlier call, [11, 12, 13,"),
        Wrong("one token is a decode", one_token_is_a_decode, "One scheduled token needn't be the last"),
        Wrong("the last known token", last_known, "21 is computed already. All known tokens are computed"),
        Wrong("-i", minus_i, "−1 − i"),
        Wrong("always -1", always_minus_one, "expected [41, -3]; yours returned [41, »-1«]"),
        Wrong("the row in this step", row_of_this_step, "expected [41, -3]; yours returned [41, »-2«]"),
        Wrong("all in flight wait", all_in_flight_wait, "doesn't always wait"),
        Wrong("single tokens in flight wait", decodes_in_flight_wait, "the last token of the prompt"),
        Wrong("outputs in flight wait", output_in_flight_waits, "It has arrived already"),
        Wrong("from the start", from_the_start, "begin at `num_computed_tokens`"),
        Wrong("all that isn't computed", all_uncomputed, "Two tokens are scheduled"),
        Wrong("the newest output", newest_output, "preempted"),
        Wrong("prompt or output", either_prompt_or_output, "preempted"),
        Wrong("the position as index of the output", index_in_the_output, "token 4 is `output_ids[0]`"),
        Wrong("leaves placeholders out", leaves_placeholders_out, "the step computes 1 token;"),
        Wrong("appends placeholders", appends_placeholders, "changed a sequence"),
        Wrong("looks up all", always_looks_up, "looked for A in a dict"),
        Wrong("a list of lists", list_of_lists, "One flat list"),
        Wrong("a tensor", as_a_tensor, "yours returned a Tensor"),
        Wrong("the order of the step in flight", order_in_flight, "the right ids in another order"),
        Wrong("counts them as computed", counts_as_computed, "its `num_computed_tokens` was 0, and is 4"),
        Wrong("extends the prompt", extends_the_prompt, "its `prompt_ids` was"),
    ],
    "13.4": [
        Wrong("no clamp", without_clamp, "known ids need a valid index"),
        Wrong("-id", index_is_minus_id, "−1 is token 0"),
        Wrong("from the end", from_the_end, "As an index, −1 means the last one"),
        Wrong("0 too", zero_too, "0 is a token like any other"),
        Wrong("only -1", only_minus_one, "−2 is token 1"),
        Wrong("one after the other", in_order, "also if no other id"),
        Wrong("a mask", with_a_mask, "Don't index with a mask"),
        Wrong("in place", in_place, "changed its argument `input_ids`"),
        Wrong("a loop", with_a_loop, "Don't loop over the ids"),
        Wrong("an if", with_an_if, "No `if` may look at an id"),
        Wrong("a tensor on the CPU", on_the_cpu, "device=input_ids.device"),
        Wrong("floats", as_floats, "should be int64"),
        Wrong("the wrong way round", other_way_round, "does the token come before the id in"),
        Wrong("-id, index out of range", plainly_minus_id, "token 0 of the step in flight."),
        Wrong("only those that are replaced", only_replaced, "of shape [1]"),
        Wrong("clamps at the number of ids", clamped_at_the_ids, "limit the index by the number of ids?"),
    ],
    "13.7": [
        Wrong("greedy for all", draws_the_likeliest, "Is a token drawn at all?"),
        Wrong("drawn for all", draws_at_zero_too, "the token should be 1"),
        Wrong("never colder than 0.9", draws_at_a_small_temperature, "first seven rows"),
        Wrong("decides for the whole batch", decides_for_the_batch, "an `if`, `and` or `bool()`"),
        Wrong("greedy rows by a mask", greedy_by_mask, "a mask as an index"),
        Wrong("reads the temperature", reads_the_temperature, "`.item()`"),
        Wrong("lists", by_lists, "`.tolist()`"),
        Wrong("torch.multinomial", by_multinomial, "at the second call"),
        Wrong("forgets the temperature", without_temperature, "That would be right at temperature 1"),
        Wrong("multiplies by the temperature", times_temperature, "Divide by the temperature"),
        Wrong("probability / number", divides_by_the_number, "is no exponential random number yet"),
        Wrong("probability * number", multiplies_by_the_number, "is no exponential random number yet"),
        Wrong("the largest time", largest_time, "the *largest* time"),
        Wrong("time = number * weight", multiplies_time, "Yours multiplies where it should divide"),
        Wrong("the logits race", logits_race, "Yours races the logits themselves"),
        Wrong("adds the number", adds_the_number, "With logarithms"),
        Wrong("without the position", without_position, "Does each position have its own numbers"),
        Wrong("without the seed", without_seed, "Does each row use its own seed?"),
        Wrong("the index of the row as seed", row_as_seed, "the index of the row is another one"),
        Wrong("a hash of the sum", hashes_the_sum, "seed 8 at positions 0"),
        Wrong("a hash of the difference", hashes_the_difference, "seed 8 at positions 1"),
        Wrong("a temperature of nearly 0", nearly_zero, "A very small temperature isn't 0"),
        Wrong("token after token", token_after_token, "for 4 tokens"),
        Wrong("logarithms race", log_probabilities, "Yours races logarithms"),
        Wrong("the smallest product", largest_product_is_last, "Yours multiplies where it should divide"),
        Wrong("overflows", overflows, "exp(300) overflows"),
        Wrong("smallest weight 1", lowered_by_the_smallest, "must not be drawn"),
        Wrong("draws what is masked", clamps_logits, "must not be drawn"),
        Wrong("sorts", sorts_first, "sorts the vocabulary"),
        Wrong("row after row", row_after_row, "operations for 2 rows"),
        Wrong("a tensor on the CPU", tokens_on_the_cpu, "device=logits.device"),
        Wrong("a column", as_a_column, "the shape [1]"),
        Wrong("int32", as_int32, "should be int64"),
        Wrong("a list", as_a_list_of_tokens, "expected a tensor of token ids"),
        Wrong("changes the logits", lowers_in_place, "changed its argument `logits`"),
        Wrong("log(1 - u)", rounds_one_minus_u, "`torch.log1p(-number)`"),
        Wrong("in bfloat16", in_bfloat16, "Change them to float32"),
        Wrong("softmax of a column", softmax_of_a_column, "All tokens are drawn equally often"),
        Wrong("clamps low logits", clamps_low_logits, "Does your code clamp logits"),
    ],
}

RIGHT = {
    "13.3": [loop_with(), with_counts, processes_before_it_appends, drops_always],
    "13.1": [WarmsUp, WithLayouts, KeyAsText, IdsOfAll, DropsFirst],
    "13.2": [counts_placeholders, token_by_token, by_slices, by_position_in_flight],
    "13.4": [by_gather, by_not, one_table, known_minus_one],
    "13.7": [
        by_gumbel,
        by_softmax,
        smallest_time,
        by_log_number,
        on_a_line,
        with_safe_temperature,
        for_each_row,
        in_one_argmin,
    ],
}
