"""Lesson 12: the rules of all sequences of a step, applied on the device in one pass over the logits.

What a rule looks at is on the device already: how often a completion contains each token, and what is added to each
logit. Both are filled in when a completion comes, and the step that chooses a token counts it. So the host needs to
know no token before the next step is launched. Only grammars, bad words of several tokens and functions look at tokens
on the host, and only for their own rows.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from lessons_lib.engine.logits_processors import LogitsProcessor
from lessons_lib.engine.rules import NEVER, NO_TOKEN_ALLOWED, to_device

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


@dataclass
class Plan:
    """The part of a step's rules that the next step uses again if it has the same sequences, as most steps have.

    Attributes:
        processors, positions: of each sequence, see `RulesMemory`; the positions are those of the next step.
        num_steps: for how many more steps nothing changes but the positions.
        table: see `rules_table`, on the device.
        ends: the end token of each sequence, int64 [N], on the device.
        offsets, amounts: where the counts of each sequence begin in the flat rows, and what a token adds: 2, or 0 for a
            sequence without counts. None if none has any.
        calls_functions: whether a sequence has functions of users.
        masked: completions whose allowed tokens are found in each step.
        masks: see `masks_of`, on the device.
    """

    processors: list[Any]
    positions: list[int]
    num_steps: float
    table: torch.Tensor
    ends: torch.Tensor
    offsets: torch.Tensor | None
    amounts: torch.Tensor
    calls_functions: bool
    masked: list[LogitsProcessor]
    masks: torch.Tensor


class RulesState:
    """State that the rules of an engine's completions need on the device.

    Attributes:
        counts: int32: twice the number of times that the completion contains a token, plus 1 if the prompt does. Filled
            for a number of tokens of the completion.
        biases: float32: what is added to each logit; minus infinity if the token must not be drawn. Filled for the
            beginning of a completion, where `min_tokens` excludes tokens, or for the rest.
        plan: of the last step.
    """

    plan: Plan | None = None

    def __init__(self) -> None:
        self.counts, self.biases = Slots(torch.int32), Slots(torch.float32)

    def process(self, logits: torch.Tensor, processors: ListOf[Any], positions: ListOf[int]) -> torch.Tensor:
        """See `RulesMemory`. In vLLM's order: functions of the user's, allowed tokens, bad words, min_tokens, bias,
        penalties. The grammar comes last, so that nothing overrules it. Temperature and cuts follow in
        `choose_tokens`."""
        plan = self.plan
        if not plan or not plan.num_steps or plan.processors != processors or plan.positions != positions:
            plan = self.plan = self.make_plan(logits, list(processors), list(positions))
        if plan.calls_functions:
            logits = call_functions(logits, processors)
        if plan.masked:
            plan.masks = to_device(masks_of(plan.masked, logits.shape[-1]), logits.device)
        return rules_on(logits.device)(logits, plan.table, self.counts.rows, self.biases.rows, plan.masks)

    def make_plan(self, logits: torch.Tensor, processors: list[Any], positions: list[int]) -> Plan:
        """Give the completions of a step slots, and fill those that are not what the step needs."""
        if last := self.plan:
            known = zip(last.processors, last.positions)
            self.counts.state_of.update((each, position) for each, position in known if each in self.counts.slot_of)
        own = {each: position for each, position in zip(processors, positions) if each}
        counted = {each: position for each, position in own.items() if each.rules.has_penalties}
        beginning = {each: each.missing_tokens(position) for each, position in own.items()}
        biased = {each: int(missing > 0) for each, missing in beginning.items() if missing > 0 or each.rules.has_biases}
        if stale := self.counts.enter(counted, logits):
            self.fill_counts(stale)
        if stale := self.biases.enter(biased, logits):
            self.fill_biases({each: each.biases(bool(biased[each]), logits.shape[-1]) for each in stale})
        masked = [each for each in own if each.looks_at_tokens]
        row_of = {each: row for row, each in enumerate(masked)}
        parts = (self.counts.slot_of, counted), (self.biases.slot_of, biased), (row_of, row_of)
        slots = [[slot_of[each] if each in wanted else -1 for each in processors] for slot_of, wanted in parts]
        table = to_device(rules_table(processors, slots), logits.device)
        has_counts = table[:, 0] >= 0
        return Plan(
            processors, positions, min((missing for missing in beginning.values() if missing > 0), default=math.inf),
            table, ends_of(processors, logits.device),
            table[:, 0] * logits.shape[-1] * has_counts if counted else None, has_counts.int() * 2,
            any(each.rules.params.logits_processors for each in own), masked,
            logits.new_empty(0, -(-logits.shape[-1] // 32), dtype=torch.int32),
        )  # fmt: skip

    def settle(self, tokens: torch.Tensor, highest: torch.Tensor) -> None:
        """See `RulesMemory`."""
        plan = self.plan
        assert plan, "`process` comes first"
        may_fail = plan.masked or plan.calls_functions
        if may_fail and any(each and each.error for each in plan.processors):
            plan.ends = ends_of(plan.processors, tokens.device)
        tokens.masked_fill_(~(highest.abs() < float("inf")), NO_TOKEN_ALLOWED)
        torch.where(highest == NEVER, plan.ends, tokens, out=tokens)
        if plan.offsets is not None:
            self.counts.rows.view(-1).index_add_(0, plan.offsets + tokens.clamp(min=0), plan.amounts)
        plan.positions = [position + 1 for position in plan.positions]
        plan.num_steps -= 1

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


def ends_of(processors: ListOf[Any], device: torch.device) -> torch.Tensor:
    """The token of each sequence where its rules leave none, int64 [N]."""
    return to_device([each.end_token if each else NO_TOKEN_ALLOWED for each in processors], device)


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


def masks_of(completions: list[LogitsProcessor], vocabulary: int) -> torch.Tensor:
    """The tokens that grammars and bad words allow, a bit for each: int32 [completions, vocabulary / 32 rounded up]."""
    masks = np.zeros((len(completions), -(-vocabulary // 32)), np.int32)
    for each, mask in zip(completions, masks):
        try:
            mask[:] = each.mask(vocabulary)
        except Exception as error:
            each.error = error
    return torch.from_numpy(masks)


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
    count_slots, bias_slots, mask_rows = table[:, :3].unbind(1)
    at_once = max(1, NUM_LOGITS_AT_ONCE // logits.shape[-1])
    for part in torch.split((bias_slots >= 0).nonzero()[:, 0], at_once):
        out.index_add_(0, part, biases[bias_slots[part]])
    for part in torch.split((count_slots >= 0).nonzero()[:, 0], at_once):
        seen = counts[count_slots[part]]
        where, tokens = seen.nonzero(as_tuple=True)  # few: a completion has far fewer tokens than the vocabulary
        repetition, presence, frequency = table[part[where], 3:].view(torch.float64).float().unbind(1)
        own, times = out[part[where], tokens], seen[where, tokens] >> 1
        own = torch.where(own > 0, own / repetition, own * repetition)
        out[part[where], tokens] = torch.where(times > 0, own - (presence + frequency * times), own)
    for part in torch.split((mask_rows >= 0).nonzero()[:, 0], at_once):
        allowed = (masks[mask_rows[part], :, None] >> bits & 1).flatten(1)[:, : out.shape[1]]
        out[part] = out[part].masked_fill(allowed == 0, NEVER)
    return out
