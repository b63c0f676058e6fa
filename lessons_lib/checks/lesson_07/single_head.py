"""One query over a block table: the right attention output, and what each wrong idea gives instead."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lessons_lib.checks.kernels import close

NOWHERE = -(10**6)  # the block table's entries past the blocks in use


@dataclass
class SingleHead:
    """One query head of one sequence.

    Attributes:
        query: [D].
        keys, values: [num_blocks, block_size, D], of its KV head.
        table: the blocks of the sequence, in the order of its tokens, and nothing past them.
    """

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    table: list[int]
    num_tokens: int
    scale: float

    @property
    def block_size(self) -> int:
        return self.keys.shape[1]

    def cells(self) -> list[tuple[int, int]]:
        """(block, slot) of every token, in order."""
        return [(self.table[token // self.block_size], token % self.block_size) for token in range(self.num_tokens)]

    def want(self) -> torch.Tensor:
        return self._over(self.cells())

    def _parts(self, cells) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (
            torch.stack([cache[block, slot] for block, slot in cells]).double() for cache in (self.keys, self.values)
        )
        return keys @ self.query.double(), values

    def _over(self, cells, scale: float | None = None) -> torch.Tensor:
        scores, values = self._parts(cells)
        return (scores * (self.scale if scale is None else scale)).softmax(dim=0) @ values

    def _online(
        self,
        carry=True,
        rescale_sum=True,
        rescale_acc=True,
        divide_each=False,
        divide=True,
        empty_weight=False,
        power=1.0,
        normalize=False,
    ) -> torch.Tensor:
        """Block by block, with one step left out.

        `empty_weight`: a masked key has a score of 0 and a value of 0. `power`: of the factor.
        `normalize`: each block's weights are divided by their own sum.
        """
        row_max, row_sum, acc = -torch.inf, 0.0, torch.zeros(self.keys.shape[2], dtype=torch.float64)
        cells = self.cells()
        for start in range(0, self.num_tokens, self.block_size):
            scores, values = self._parts(cells[start : start + self.block_size])
            scores = scores * self.scale
            if empty_weight and len(scores) < self.block_size:
                missing = self.block_size - len(scores)
                scores, values = (
                    torch.cat([scores, torch.zeros(missing).double()]),
                    torch.cat([values, torch.zeros(missing, values.shape[1]).double()]),
                )
            new_max = max(row_max, scores.max().item())
            weights = (scores - new_max).exp()
            rescale = (power * torch.tensor(row_max - new_max, dtype=torch.float64)).exp() if start else 0.0
            weights = weights / weights.sum() if normalize else weights
            row_sum = row_sum * (rescale if rescale_sum else 1) + weights.sum()
            acc = acc * (rescale if rescale_acc else 1) + weights @ values
            acc = acc / row_sum if divide_each else acc
            row_max = new_max if carry else -torch.inf
        return acc / row_sum if divide and not divide_each else acc

    def _own_maxima(self) -> torch.Tensor:
        """Each block relative to its own maximum, all added up."""
        row_sum, acc, cells = 0.0, 0.0, self.cells()
        for start in range(0, self.num_tokens, self.block_size):
            scores, values = self._parts(cells[start : start + self.block_size])
            weights = (scores * self.scale - scores.max() * self.scale).exp()
            row_sum, acc = row_sum + weights.sum(), acc + weights @ values
        return acc / row_sum

    def wrong_ideas(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(what is wrong, what it gives). All slots of the caches must hold finite values."""
        cells, size = self.cells(), self.block_size
        scores, values = self._parts(cells)
        in_order = [(token // size, token % size) for token in range(self.num_tokens)]
        whole_blocks = [(block, slot) for block in self.table for slot in range(size)]
        yield "The scores are not multiplied by `scale`.", self._over(cells, 1.0)
        yield (
            "The scores are multiplied by `scale` twice. Scale either the query or the scores.",
            self._over(cells, self.scale**2),
        )
        yield (
            "You multiplied the result by `scale`. It is a factor of the scores, before the exponential.",
            self._over(cells, 1.0) * self.scale,
        )
        yield (
            "You divided the result by `scale`, or the sum of the weights has it as a factor. Only the scores have it.",
            self._over(cells) / self.scale,
        )
        yield "You divided by `scale`. It is already 1 / sqrt(head size): multiply.", self._over(cells, 1 / self.scale)
        yield (
            "The scores are multiplied by 1 / sqrt(HEAD_DIM). Multiply by `scale`: a model may use another factor.",
            self._over(cells, self.keys.shape[2] ** -0.5),
        )
        yield (
            "These are powers of 2. A softmax takes powers of e: `tl.exp`.",
            self._over(cells, self.scale * 0.6931471805599453),
        )
        yield (
            "Slots past the last token were included. In the last block only the slots with `first + slot < "
            "num_tokens` hold keys: the scores of the others must be minus infinity, so that their weights are 0.",
            self._over(whole_blocks),
        )
        if self.num_tokens > 1:
            yield NEWEST, self._over(cells[:-1])
        if self.num_tokens < len(whole_blocks):
            yield (
                "One key too many was included. Positions count from 0: `first + slot < num_tokens`, not `<=`.",
                self._over(whole_blocks[: self.num_tokens + 1]),
            )
        if self.num_tokens > size:
            last = (self.num_tokens - 1) // size * size
            yield (
                "Only the last block counts in your result. Either the sums so far are overwritten, or the maximum "
                "isn't carried: `row_max` must become the new maximum at the end of each iteration; otherwise the "
                "factor exp(row_max − new_max) is 0 every time.",
                self._over(cells[last:]),
            )
            yield (
                "Only the first block counts in your result. Continue in steps of BLOCK_SIZE until all `num_tokens` "
                "are seen.",
                self._over(cells[:size]),
            )
            yield (
                "`acc` is not rescaled. The sum so far is relative to the old maximum; multiply it by exp(row_max − "
                "new_max), like `row_sum`.",
                self._online(rescale_acc=False),
            )
            yield (
                "`row_sum` is not rescaled. The sum so far is relative to the old maximum; multiply it by exp(row_max "
                "− new_max), like `acc`.",
                self._online(rescale_sum=False),
            )
            yield (
                "Neither `row_sum` nor `acc` is rescaled. Both are relative to the old maximum; multiply them by "
                "exp(row_max − new_max). If you do, is that factor always 1? Compute it before row_max changes.",
                self._online(rescale_sum=False, rescale_acc=False),
            )
            yield (
                "The factor is upside down: exp(row_max − new_max), which is at most 1. A larger maximum makes the "
                "sums so far count for less.",
                self._online(power=-1.0),
            )
            yield (
                "Each block's weights are relative to its own maximum, so they can't be added. Carry a maximum from "
                "block to block, and rescale the sums so far.",
                self._own_maxima(),
            )
            yield (
                "`scale` is in the factor exp(row_max − new_max) once more. If the scores are multiplied by it, so is "
                "their maximum.",
                self._online(power=self.scale),
            )
            yield (
                "`scale` is in the weights, but not in the factor exp(row_max − new_max). Multiply the scores by it "
                "before you take their maximum; then both have it.",
                self._online(power=1 / self.scale),
            )
            for divide in (False, True):
                yield (
                    "You divide each block's weights by their own sum, so a block with low scores counts as much as "
                    "one with high ones. Add up the weights in `row_sum`, and divide once, after the loop.",
                    self._online(normalize=True, divide=divide),
                )
            yield (
                "You divide by `row_sum` in every iteration. Divide once, after the loop.",
                self._online(divide_each=True),
            )
        if self.num_tokens % size:
            if self.num_tokens > size:
                yield (
                    "The last block, which isn't full, is left out. Round the number of blocks up, or go over the "
                    "tokens in steps of BLOCK_SIZE.",
                    self._over(cells[: self.num_tokens // size * size]),
                )
            yield (
                "Slots without a token have a score of 0, and exp(0 − maximum) is a weight like any other. Their "
                'score must be minus infinity: `tl.where(is_key, scores, float("-inf"))`.',
                self._online(empty_weight=True),
            )
        yield (
            "The result is not divided by `row_sum`, the sum of the weights. If you do divide: is it the sum of all of "
            "them, `tl.sum`? The largest weight alone is 1.",
            self._online(divide=False),
        )
        if self.num_tokens <= size:
            weights = (scores * self.scale - (scores * self.scale).max()).exp()
            yield "The values are added without their weights.", values.sum(dim=0) / weights.sum()
        if max(block for block, _ in in_order) < len(self.keys):
            yield (
                "You read blocks 0, 1, ... of the cache. Those are the sequence's logical blocks; the table says "
                "which physical block holds each of them.",
                self._over(in_order),
            )
        yield (
            "You used the keys as values: the weights multiply the values.",
            (scores * self.scale).softmax(dim=0) @ self._parts_of(self.keys, cells),
        )
        value_scores = self._parts_of(self.values, cells) @ self.query.double() * self.scale
        yield "You used the values as keys: the scores are query · key.", value_scores.softmax(dim=0) @ values
        yield "Keys and values are swapped.", value_scores.softmax(dim=0) @ self._parts_of(self.keys, cells)
        yield (
            "This is the plain mean of the values: all weights are equal. The weights are exp(score − maximum), with "
            "one score per key. Is yours the sum along `axis=1`?",
            values.mean(dim=0),
        )

    def _parts_of(self, cache, cells) -> torch.Tensor:
        return torch.stack([cache[block, slot] for block, slot in cells]).double()

    def recognize(self, got: torch.Tensor) -> str:
        """The wrong idea whose result is closest to this single, or "" if none gives it."""
        want = self.want()
        near = [
            (float((got.double() - formed).abs().max()), idea)
            for idea, formed in self.wrong_ideas()
            if close(got, formed) and not close(formed, want)
        ]
        return next((idea for distance, idea in near if distance <= min(near)[0] + 1e-6), "")


@dataclass
class Reads:
    """What a program read, in the order of its loads.

    Attributes:
        keys: (block, slot) of every key of which at least one element was read.
        key_elements: how many elements of keys were read.
        values: (block, slot) of every value of which at least one element was read.
        entries: entries of this sequence's block table that were read.
        iterations: how many loads of keys there were.
    """

    keys: list[tuple[int, ...]]
    key_elements: int
    values: list[tuple[int, ...]]
    entries: list[int]
    iterations: int

    def explain(self, single: SingleHead) -> str:
        """Why these slots aren't enough, or "" if all that are needed were read."""
        wanted, size = single.cells(), single.block_size
        missing = [cell for cell in wanted if cell not in set(self.keys)]
        if not missing:
            if self.key_elements < len(wanted) * single.query.shape[0]:
                return (
                    "Only part of each key was read. The offsets form a rectangle: one row per slot, `[:, None]`, one "
                    "column per dimension, `[None, :]`."
                )
            return self._why_values(wanted)
        if not self.keys:
            return self._why_none(single)
        blocks, needed = sorted({block for block, _ in self.keys}), sorted({block for block, _ in wanted})
        prefix = f"You read blocks {blocks}; the sequence is in {needed}. "
        if self.iterations >= len(needed) > len(blocks) and len(set(self.entries)) <= 1:
            return (
                prefix
                + "Every iteration reads the same table entry. The block of position p is in entry p // BLOCK_SIZE."
            )
        if blocks == sorted({token // size for token in range(single.num_tokens)}) and blocks != needed:
            return (
                prefix
                + "Those are the sequence's logical blocks, 0, 1, ... The table says which physical block holds each "
                "of them."
            )
        if self.key_elements > len(set(self.keys)) * single.query.shape[0]:
            return (
                "You read elements that aren't part of this head's keys: slots are `stride_slot` apart, KV heads "
                "`stride_head`, with or without gaps between them."
            )
        extra = set(self.keys) - set(wanted)
        if set(self.keys) == {(block + token // size, slot) for token, (block, slot) in enumerate(wanted)}:
            return (
                prefix + "You use the position in the sequence as the slot. In every block the slots start at 0: "
                "position p is in slot p % BLOCK_SIZE."
            )
        if set(blocks) <= set(needed):
            if missing == wanted[-1:] and not extra:
                return NEWEST
            if (
                set(missing) == {cell for cell in wanted if cell[0] == wanted[-1][0]}
                and len(wanted) % size
                and not extra
            ):
                return (
                    "The last block is left out. It counts even though it isn't full: go over the tokens in steps of "
                    "BLOCK_SIZE until all `num_tokens` are done."
                )
            if blocks == [single.table[0]] and len(needed) > 1:
                return prefix + "Continue in steps of BLOCK_SIZE until all `num_tokens` are done."
            if not extra and set(self.keys) == set(wanted[: len(self.keys)]):
                return (
                    f"Only the first {len(self.keys)} of {len(wanted)} keys were read. Go on until the positions reach "
                    "the number of tokens, which isn't the number of blocks."
                )
            return (
                f"The keys of {len(missing)} of {len(wanted)} tokens weren't read, such as the one in slot "
                f"{missing[0][1]} of block {missing[0][0]}"
                + (f", and {len(extra)} slots that hold no token of the sequence were. " if extra else ". ")
                + "Slots are `stride_slot` apart. Look at where the keys start, and at the mask."
            )
        return prefix + (
            "A block starts at block × stride_block, and slots are `stride_slot` apart. Use both strides: a cache may "
            "be a view of a larger tensor, so one doesn't follow from the other."
        )

    def _why_values(self, wanted: list[tuple[int, int]]) -> str:
        """Why the values aren't enough, though the keys are; "" if none were read, or all that are needed."""
        missing = [cell for cell in wanted if cell not in set(self.values)]
        if not self.values or not missing:
            return ""
        return (
            f"All keys were read, but the value in slot {missing[0][1]} of block {missing[0][0]} wasn't. A value is at "
            "the same offset in `values` as its key is in `keys`: block × stride_block + slot × stride_slot. And both "
            "loads have the same mask."
        )

    def _why_none(self, single: SingleHead) -> str:
        if self.values:
            return (
                "You read values, but no keys. The scores are query · key; each load has its own pointer, `keys` or "
                "`values`."
            )
        if self.entries and single.num_tokens == 1:
            return NEWEST
        if self.entries:
            return (
                "You read the table, but no keys: the mask was False for all slots of each block. A slot holds a key "
                "if `first + slot < num_tokens`; is that what you compare? A full block has no remainder."
            )
        return "You read no keys and no table entries: the loop is never entered. A block that isn't full counts too."


NEWEST = "The newest token is left out. `num_tokens` includes it, and its key counts: `first + slot < num_tokens`."
