"""Lesson 12: the rules of all sequences of a step, applied on the device in one pass over the logits.

What a rule looks at is on the device already: how often a completion contains each token, and what is added to each
logit. Both are filled in when a completion comes, and the step that chooses a token counts it. So the host needs to
know no token before the next step is launched. Only grammars, bad words of several tokens and functions look at tokens
on the host, and only for their own rows.
"""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from lessons_lib.engine.logits_processors import LogitsProcessor
from lessons_lib.engine.rules import NEVER, to_device

NUM_SETTINGS = 6
NUM_LOGITS_AT_ONCE = 2**18  # on a CPU: what is made of them stays in its cache


class Slots:
    """A row on the device for each completion of a batch, with a value for each token of the vocabulary.

    Attributes:
        rows: [slots, vocabulary]. There are as many slots as the largest batch had completions, or up to twice as many.
        slot_of: completion -> its slot. A completion that isn't in the batch keeps its slot until it is needed.
        state_of: completion -> what its row was filled for.
    """

    def __init__(self, dtype: torch.dtype):
        self.rows = torch.empty(0, 0, dtype=dtype)
        self.slot_of: dict[LogitsProcessor, int] = {}
        self.state_of: dict[LogitsProcessor, int] = {}

    def enter(self, states: dict[LogitsProcessor, int], like: torch.Tensor) -> list[LogitsProcessor]:
        """Give completions slots.

        Args:
            states: of all completions of a batch: what their rows are to be filled for.
            like: logits, [N, vocabulary].

        Returns:
            those whose rows must be filled.
        """
        if not self.rows.shape[1]:
            self.rows = self.rows.new_empty(0, like.shape[-1], device=like.device)
        if len(states) > len(self.rows):
            old, size = self.rows, 1 << (len(states) - 1).bit_length()
            self.rows = old.new_empty(size, old.shape[1])
            self.rows[: len(old)] = old
        new = [each for each in states if each not in self.slot_of]
        if len(self.slot_of) + len(new) > len(self.rows):
            self.slot_of = {each: slot for each, slot in self.slot_of.items() if each in states}
            self.state_of = {each: self.state_of[each] for each in self.slot_of}
        if new:
            self.slot_of.update(zip(new, set(range(len(self.rows))) - set(self.slot_of.values())))
        stale = [each for each, state in states.items() if self.state_of.get(each) != state]
        self.state_of |= states
        return stale

    def indices(self, tokens_of: dict[LogitsProcessor, Any]) -> torch.Tensor:
        """Where tokens of several completions are in the flat rows, int64."""
        vocabulary, device = self.rows.shape[1], self.rows.device
        parts = [self.slot_of[each] * vocabulary + np.asarray(ids, np.int64) for each, ids in tokens_of.items()]
        return to_device(torch.from_numpy(np.concatenate(parts)), device)


class RulesState:
    """What the rules of the completions of an engine need on the device.

    Attributes:
        counts: int32: twice the number of times that the completion contains a token, plus 1 if the prompt does. Filled
            for a number of tokens of the completion.
        biases: float32: what is added to each logit; minus infinity if the token must not be drawn. Filled for the
            beginning of a completion, where `min_tokens` excludes tokens, or for the rest.
        table: see `rules_table`; of the last step.
    """

    def __init__(self) -> None:
        self.counts, self.biases = Slots(torch.int32), Slots(torch.float32)
        self.table = torch.empty(0, NUM_SETTINGS, dtype=torch.int64)
        self.counted: list[LogitsProcessor] = []

    def process(self, logits: torch.Tensor, processors: ListOf[Any], positions: ListOf[int]) -> torch.Tensor:
        """See `RulesMemory`. In vLLM's order: functions of the user's, allowed tokens, bad words, min_tokens, bias,
        penalties. The grammar comes last, so that nothing overrules it. Temperature and cuts follow in
        `choose_tokens`."""
        logits = call_functions(logits, processors)
        own = {each: position for each, position in zip(processors, positions) if each}
        counted = {each: position for each, position in own.items() if each.rules.has_penalties}
        biased = {each: int(each.is_beginning(position)) for each, position in own.items() if each.has_biases(position)}
        self.counted = [*counted]
        if stale := self.counts.enter(counted, logits):
            self.fill_counts(stale)
        if stale := self.biases.enter(biased, logits):
            self.fill_biases({each: each.biases(bool(biased[each]), logits.shape[-1]) for each in stale})
        masks, row_of = masks_of([each for each in own if each.looks_at_tokens], logits.shape[-1])
        parts = (self.counts.slot_of, counted), (self.biases.slot_of, biased), (row_of, row_of)
        slots = [[slot_of[each] if each in wanted else -1 for each in processors] for slot_of, wanted in parts]
        self.table = to_device(rules_table(processors, slots), logits.device)
        memory = self.counts.rows, self.biases.rows, to_device(masks, logits.device)
        return rules_on(logits.device)(logits, self.table, *memory)

    def fill_counts(self, completions: list[LogitsProcessor]) -> None:
        """Count the tokens that completions have."""
        rows, sequences = self.counts.rows, {each: each.sequence for each in completions}
        rows.index_fill_(0, to_device([self.counts.slot_of[each] for each in completions], rows.device), 0)
        prompts = self.counts.indices({each: sequence.prompt_ids for each, sequence in sequences.items()})
        outputs = self.counts.indices({each: sequence.output_ids for each, sequence in sequences.items()})
        rows.view(-1).index_fill_(0, prompts, 1)
        rows.view(-1).index_add_(0, outputs, torch.full_like(outputs, 2, dtype=rows.dtype))

    def fill_biases(self, biases: dict[LogitsProcessor, tuple[float, dict[int, float]]]) -> None:
        """Set what is added to the logits of completions; see `LogitsProcessor.biases`."""
        rows, slot_of = self.biases.rows, self.biases.slot_of
        for others in (0.0, NEVER):
            slots = [slot_of[each] for each, (value, _) in biases.items() if value == others]
            rows.index_fill_(0, to_device(slots, rows.device), others)
        index = self.biases.indices({each: [*own] for each, (_, own) in biases.items()})
        values = torch.tensor([value for _, own in biases.values() for value in own.values()], dtype=torch.float32)
        rows.view(-1).index_copy_(0, index, to_device(values, rows.device))

    def count(self, tokens: torch.Tensor) -> None:
        """See `RulesMemory`."""
        if not self.counted:
            return
        slots, vocabulary = self.table[:, 0], self.counts.rows.shape[1]
        index = slots.clamp(min=0) * vocabulary + tokens.clamp(min=0)
        self.counts.rows.view(-1).index_add_(0, index, (slots >= 0).to(torch.int32) * 2)
        for each in self.counted:
            self.counts.state_of[each] += 1


def call_functions(logits: torch.Tensor, processors: ListOf[Any]) -> torch.Tensor:
    """The logits after the functions of users. The argument stays as it is."""
    rows = [row for row, each in enumerate(processors) if each and each.rules.params.logits_processors]
    if rows:
        logits = logits.to(torch.float32, copy=True)
    for row in rows:
        try:
            logits[row] = processors[row].after_functions(logits[row])
        except Exception as error:
            processors[row].error = error
            logits[row] = NEVER
    return logits


def masks_of(completions: list[LogitsProcessor], vocabulary: int) -> tuple[torch.Tensor, dict[LogitsProcessor, int]]:
    """The tokens that grammars and bad words allow, a bit for each.

    Returns:
        int32 tensor [masks, vocabulary / 32 rounded up], and completion -> its mask.
    """
    masks = np.zeros((len(completions), -(-vocabulary // 32)), np.int32)
    for each, mask in zip(completions, masks):
        try:
            mask[:] = each.mask(vocabulary)
        except Exception as error:
            each.error = error
    return torch.from_numpy(masks), {each: row for row, each in enumerate(completions)}


def rules_table(processors: ListOf[Any], slots: list[list[int]]) -> torch.Tensor:
    """Settings of the rules of a step in one tensor, so that one copy takes them to the device.

    Args:
        slots: for each row, its counts, its biases, and its mask; -1 for none.

    Returns:
        int64 [N, 6]: these three, then the bits of three float64: the repetition, presence and frequency penalty.
    """
    table = np.empty((len(processors), NUM_SETTINGS), np.int64)
    table[:, :3] = np.array(slots).T
    penalties = [each.rules.penalties if each else (1.0, 0.0, 0.0) for each in processors]
    table.view(np.float64)[:, 3:] = penalties
    return torch.from_numpy(table)


@cache
def rules_on(device: torch.device) -> Callable[..., torch.Tensor]:
    """The function that applies rules on a device: a kernel on a GPU with Triton, `apply_rules` elsewhere."""
    if device.type == "cuda" and find_spec("triton"):
        from lessons_lib.kernels import rules as kernel  # only here: Triton is not available everywhere

        return kernel.apply_rules
    return apply_rules


def apply_rules(
    logits: torch.Tensor, table: torch.Tensor, counts: torch.Tensor, biases: torch.Tensor, masks: torch.Tensor
) -> torch.Tensor:
    """Apply the rules of a step.

    Args:
        logits: [N, vocabulary]; they stay as they are.
        table: see `rules_table`.
        counts, biases: see RulesState. masks: see `masks_of`.

    Returns:
        float32 [N, vocabulary].
    """
    out, bits = logits.to(torch.float32, copy=True), torch.arange(32, dtype=torch.int32, device=logits.device)
    at_once = max(1, NUM_LOGITS_AT_ONCE // logits.shape[-1])
    for rows, settings in zip(torch.split(out, at_once), torch.split(table, at_once)):
        has_counts, has_biases, has_mask = (settings[:, :3] >= 0).unbind(1)
        count_slots, bias_slots, mask_rows = settings[:, :3].unbind(1)
        penalties = settings[has_counts, 3:, None].view(torch.float64).float()
        repetition, presence, frequency = penalties.unbind(1)
        rows[has_biases] += biases[bias_slots[has_biases]]
        own, seen = rows[has_counts], counts[count_slots[has_counts]]
        own = torch.where(seen > 0, torch.where(own > 0, own / repetition, own * repetition), own)
        times = seen >> 1
        rows[has_counts] = torch.where(times > 0, own - (presence + frequency * times), own)
        allowed = (masks[mask_rows[has_mask], :, None] >> bits & 1).flatten(1)[:, : rows.shape[1]]
        rows[has_mask] = rows[has_mask].masked_fill(allowed == 0, NEVER)
    return out
