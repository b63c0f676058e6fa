"""Lesson 19: the states of recurrent layers, one slot per sequence, and copies of them at the ends of blocks, from
which sequences with the same beginning start."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from lessons_lib.hybrid.cache_groups import CacheGroup, longest_usable
from lessons_lib.kv_cache.block_hashes import hash_full_blocks
from lessons_lib.scheduling.kept_states import KeptStates
from lessons_lib.scheduling.sequence import Sequence

Key = tuple[Hashable, str, int]  # layer, "conv" or "recurrent", index among its states; or module, attribute, 0
PADDING = 0  # a slot that no sequence has
STRIDE = 2048  # a long prompt keeps a checkpoint each time that it has so many tokens more


@dataclass
class HeldState:
    """The slot of a sequence, and how many of its tokens the state in it has seen; -1 if none was ever computed."""

    slot: int
    num_tokens: int = -1


class SequenceStates(KeptStates):
    """The states of all layers that keep one, for the sequences of an engine.

    A state can't be cut like keys and values: the one after 40 tokens says nothing about the one after 32. So a cached
    prefix is of use only up to a checkpoint: a copy of the state that was made there, known by the hash of the block
    that ends there. Checkpoints are made where another sequence is likely to continue: at the last full block of a
    prompt and of what follows it, where a prompt was found to branch off from a cached one, and every STRIDE tokens.

    Attributes:
        tensors: for each state of a layer, one tensor [slots, ...]; a layer adds its own when it first writes.
        num_checkpoints: the most checkpoints, 0 for none. The least recently used one makes room for a new one.
        decodes_differ: the layers compute something else for a token alone than for the same token in a prompt (Zamba 2
            and Nemotron-H clamp their time step in one of the two), so no prompt may leave one token for another step,
            and a completion is recomputed token by token.
        held, checkpoints: sequence -> its HeldState, and hash of a block -> slot, least recently used first.
    """

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.decodes_differ = False
        self.tensors: dict[Key, torch.Tensor] = {}
        self.resize(0)

    def resize(self, num_sequences: int, num_checkpoints: int = 0) -> None:
        """Allocate slots for all sequences that may have blocks at a time, and for checkpoints."""
        self.num_slots, self.num_checkpoints = 1 + num_sequences + num_checkpoints, num_checkpoints
        self.tensors = {key: old.new_zeros((self.num_slots, *old.shape[1:])) for key, old in self.tensors.items()}
        self.reset()

    def reset(self) -> None:
        """Forget the states of all sequences."""
        self.free = [slot for slot in range(self.num_slots) if slot != PADDING]
        self.held: dict[Sequence, HeldState] = {}
        self.on_host: dict[Sequence, tuple[int, dict[Key, torch.Tensor]]] = {}
        self.checkpoints: OrderedDict[bytes, int] = OrderedDict()
        self.latest: WeakKeyDictionary[Sequence, bytes] = WeakKeyDictionary()
        self.branches: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one sequence's states."""
        return sum(tensor[0].nbytes for tensor in self.tensors.values())

    # --- What the scheduler asks ---------------------------------------------------------------------------------

    @property
    def least_budget(self) -> int:  # type: ignore[override]
        """See KeptStates: `chunk` always has some of three tokens for the first prompt."""
        return 3 if self.decodes_differ else 1

    def usable(self, sequence: Sequence, blocks: list[int]) -> list[int]:
        """See KeptStates: those up to a checkpoint."""
        is_kept = [each in self.checkpoints for each in sequence.block_hashes[: len(blocks)]]
        last, rest = divmod(len(sequence.prompt_ids) - 1, self.block_size)
        if self.decodes_differ and not rest and 0 < last <= len(is_kept):
            is_kept[last - 1] = False  # behind it, one token would be left
        count = longest_usable([CacheGroup(is_kept, 1)])
        if count < len(blocks):
            self.branches[sequence] = len(blocks) * self.block_size
        return blocks[:count]

    def chunk(self, sequence: Sequence, count: int) -> int:
        """See KeptStates: no token of a prompt is computed alone, unless it is the first."""
        uncomputed = len(sequence.prompt_ids) - sequence.num_computed_tokens
        if not self.decodes_differ or count >= uncomputed:
            return count
        count -= count == uncomputed - 1
        return 0 if count == 1 and sequence.num_computed_tokens else count

    def chunks(self, counts: dict[Sequence, int]) -> dict[Sequence, int]:
        """See KeptStates."""
        found = {sequence: self.chunk(sequence, count) for sequence, count in counts.items()}
        return {sequence: count for sequence, count in found.items() if count}

    def discard(self, sequence: Sequence) -> None:
        """See KeptStates."""
        for block_hash in self.checkpoints.keys() & sequence.block_hashes:
            self.free.append(self.checkpoints.pop(block_hash))

    # --- What the runner asks ------------------------------------------------------------------------------------

    def slot_of(self, sequence: Sequence) -> int:
        """The slot of a sequence, with the state after its computed tokens in it, if there are any."""
        held, num_computed = self.held.get(sequence), sequence.num_computed_tokens
        if held is None:
            held = self.held[sequence] = HeldState(self._take())
            if sequence in self.on_host:
                held.num_tokens, states = self.on_host.pop(sequence)
                for key, state in states.items():
                    self.tensors[key][held.slot] = state
        if num_computed and held.num_tokens != num_computed:
            block_hash = sequence.block_hashes[num_computed // self.block_size - 1]
            self.checkpoints.move_to_end(block_hash)
            for tensor in self.tensors.values():
                tensor[held.slot] = tensor[self.checkpoints[block_hash]]
        return held.slot

    def _take(self) -> int:
        if not self.free:
            for sequence in [each for each in self.held if not each.blocks]:  # it has ended, or lost its cache
                held = self.held.pop(sequence)
                if sequence.swapped:
                    states = {key: tensor[held.slot].to("cpu", copy=True) for key, tensor in self.tensors.items()}
                    self.on_host[sequence] = held.num_tokens, states
                self.free.append(held.slot)
            self.on_host = {each: kept for each, kept in self.on_host.items() if each.swapped or each.blocks}
        return self.free.pop()

    def lone_tokens(self, sequence: Sequence, end: int) -> range:
        """Where a chunk that ends at `end` is cut so that tokens of the completion are computed alone again."""
        first = max(len(sequence.prompt_ids), sequence.num_computed_tokens + 1)
        return range(first, end) if self.decodes_differ else range(0)

    def new_checkpoints(self, scheduled: dict[Sequence, int]) -> dict[Sequence, dict[int, int]]:
        """Make the checkpoints of a step that is launched now.

        Returns:
            for sequences that cross any: number of tokens -> the slot that the state after them is copied to, by the
            layers. States that are there already are copied now.
        """
        found: dict[Sequence, dict[int, int]] = {}
        now: list[tuple[int, int]] = []
        num_new = 0
        for sequence, count in scheduled.items() if self.num_checkpoints else ():
            for at in self.cuts(sequence, sequence.num_computed_tokens + count):
                if num_new == self.num_checkpoints:
                    break  # it would take the slot of one that isn't even written
                target, num_new = self._new_checkpoint(sequence, at), num_new + 1
                if at == sequence.num_computed_tokens:
                    now.append((target, self.held[sequence].slot))
                else:
                    found.setdefault(sequence, {})[at] = target
        if now:
            targets, sources = map(list, zip(*now))
            for tensor in self.tensors.values():
                tensor[targets] = tensor[sources]
        return found

    def cuts(self, sequence: Sequence, end: int) -> list[int]:
        """The numbers of tokens below `end` at which a sequence leaves a checkpoint when it computes up to there. Not
        at `end` itself: the hash of the last block may not be known before its last token is."""
        size, start, prompt = self.block_size, sequence.num_computed_tokens, len(sequence.prompt_ids)
        stride = -(-STRIDE // size) * size
        ends = {(prompt - 1) // size * size, self.branches.get(sequence, 0), *range(stride, end, stride)}
        if end > prompt:
            ends.add((end - 1) // size * size)
        hashes = hash_full_blocks(sequence, size)  # the scheduler has hashed only what was known one step ago
        cuts = []
        for at in sorted(ends - {0}):
            is_new = start <= at < end and hashes[at // size - 1] not in self.checkpoints
            if is_new and not (self.decodes_differ and self._cuts_one_off(start, at, min(end, prompt))):
                cuts.append(at)
                start = at
        return cuts

    def _cuts_one_off(self, start: int, at: int, end: int) -> bool:
        return start < at < end and (at == end - 1 or at == start + 1 > 1)

    def _new_checkpoint(self, sequence: Sequence, num_tokens: int) -> int:
        block_hash = sequence.block_hashes[num_tokens // self.block_size - 1]
        if num_tokens >= len(sequence.prompt_ids):  # of the completion, only the last one is kept
            before = self.latest.get(sequence, b"")
            if before in self.checkpoints:
                self.free.append(self.checkpoints.pop(before))
            self.latest[sequence] = block_hash
        if len(self.checkpoints) >= self.num_checkpoints:
            self.free.append(self.checkpoints.popitem(last=False)[1])
        self.checkpoints[block_hash] = self._take()
        return self.checkpoints[block_hash]

    def note_computed(self, scheduled: dict[Sequence, int]) -> None:
        """Count the tokens of a step that is launched now: the states will have seen them."""
        for sequence, count in scheduled.items():
            self.held[sequence].num_tokens = sequence.num_computed_tokens + count

    # --- What the layers ask -------------------------------------------------------------------------------------

    def write(self, key: Key, slots: torch.Tensor, states: torch.Tensor) -> None:
        """Write the states of one layer, [N, ...], to the slots of N sequences."""
        if key not in self.tensors:
            self.tensors[key] = states.new_zeros((self.num_slots, *states.shape[1:]))
        self.tensors[key][slots] = states.to(self.tensors[key].dtype)
