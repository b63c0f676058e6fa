"""Judges 07.2, `one_block_kernel`: one query over the keys of a single block, which need not be full."""

from collections.abc import Iterator
from random import Random

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import close, compiled_too, ranges, refuse_wrong_tensors, run, touched, values_text

HEAD_DIM = 8
UNTOUCHED = -7.0
SCORES_TEXT = {
    "small": "",
    "high": "; the scores are near 200",
    "low": "; all scores are near −200",
    "deep": "; the score is near −100,000",
}


def check_one_block_kernel(attempt) -> None:
    block, vector = torch.zeros(4, HEAD_DIM), torch.zeros(HEAD_DIM)
    launch = (vector, block, block, vector, 3, 0.3, HEAD_DIM), dict(HEAD_DIM=HEAD_DIM, BLOCK_SIZE=4)
    compiled_too(lambda: _check_results(attempt), attempt, launch)


def _check_results(attempt) -> None:
    _check_case(attempt, 4)
    _check_case(attempt, 2)
    _check_case(attempt, 1)
    _check_case(attempt, 4, gap=1)
    _check_case(attempt, 4, scores="high")
    _check_case(attempt, 3, scores="low")
    _check_case(attempt, 1, scores="deep")
    rng = Random(2)
    for seed in range(3):
        size = rng.choice((1, 2, 8))
        _check_case(attempt, rng.randint(1, size), "small", rng.choice((0, 2)), size, rng.choice((8, 16)), seed)


def _check_case(attempt, num_tokens, scores="small", gap=0, size=4, head_dim=HEAD_DIM, seed=0) -> None:
    """`gap`: unused rows of the larger tensor between two slots of the block."""
    case = _Case(num_tokens, scores, gap, size, head_dim, seed)
    got, recording = case.run(attempt, float("nan"))
    stored = touched(recording, recording.programs[0], "store", "out")
    if stored != list(range(head_dim)):
        what = f"out has elements 0 to {head_dim - 1}; yours stores {ranges(stored)}."
        idea = "The result is a tile `[HEAD_DIM]`: `tl.store(out + dim, ...)` with `dim = tl.arange(0, HEAD_DIM)`."
        raise Mistake(what, case=case.text, idea=idea)
    for name in ("k_block", "v_block", "q"):
        if mistake := case.wrong_load(recording, name):
            raise mistake
    want = case.want()
    if close(got, want):
        return
    what = f"the attention should be {values_text(want)}; yours is {values_text(got)}."
    # The same with finite values in the unused slots: NaN would hide what was computed with them.
    finite, _ = case.run(attempt, None)
    idea = case.why_deep() or case.recognize(finite) or case.why_not_finite(got, finite)
    if not idea:
        idea = (
            "One score per key; minus infinity where there is no key; exp(score − maximum) as its weight; the weighted "
            "sum of the values, divided by the sum of the weights. Which of them isn't what you expect? "
            "`print` it in the kernel."
        )
    raise Mistake(what, case=case.text, idea=idea)


class _Case:
    def __init__(self, num_tokens, scores, gap, size, head_dim, seed):
        self.num_tokens, self.gap, self.size, self.head_dim, self.scale = num_tokens, gap, size, head_dim, 0.3
        generator = torch.Generator().manual_seed(40 + seed)
        self.q = torch.randn(head_dim, generator=generator)
        self.k, self.v = (2 * torch.randn(size, head_dim, generator=generator) for _ in range(2))
        target = {"small": None, "high": 200.0, "low": -200.0, "deep": -100_000.0}[scores]
        if target is not None:  # changes each key along the query, so that its score is near the target
            near = target + 2 * torch.rand(size, generator=generator)
            self.k += ((near / self.scale - self.k @ self.q) / (self.q @ self.q))[:, None] * self.q
        stride = head_dim * (1 + gap)
        self.stride, self.scores = stride, scores
        self.text = (
            f"{num_tokens} token{'s' if num_tokens > 1 else ''}, BLOCK_SIZE = {size}, HEAD_DIM = {head_dim}, "
            f"stride_slot = {stride}{SCORES_TEXT[scores]}. Slots without a token hold NaN."
        )

    def run(self, attempt, unused: float | None):
        """(out, recording). `unused`: what slots without a token hold; None for finite values."""
        blocks = []
        for full in (self.k, self.v):
            tensor = torch.full((self.size * (1 + self.gap), self.head_dim), float("nan") if unused else 3.0)
            view = tensor[:: 1 + self.gap]
            view.copy_(full)
            if unused is not None:
                view[self.num_tokens :] = unused
            blocks.append(view)
        out = torch.full((self.head_dim,), UNTOUCHED)
        recording = run(
            attempt, (1,), self.q, *blocks, out, self.num_tokens, self.scale, self.stride,
            HEAD_DIM=self.head_dim, BLOCK_SIZE=self.size, case=self.text, explain=self._out_of_bounds,
        )  # fmt: skip
        refuse_wrong_tensors(recording, "out", self.text)
        return out, recording

    def _out_of_bounds(self, error) -> str:
        if error.tensor in ("q", "out"):
            return (
                f"`{error.tensor}` has HEAD_DIM elements: `{error.tensor} + dim`, with `dim = tl.arange(0, HEAD_DIM)`."
            )
        return (
            "Slot s starts at s × stride_slot, and a key has HEAD_DIM elements: "
            "`slot[:, None] * stride_slot + dim[None, :]`, with slots 0 to BLOCK_SIZE − 1."
        )

    def wrong_load(self, recording, name: str) -> Mistake | None:
        loaded = set(touched(recording, recording.programs[0], "load", name))
        rows = 1 if name == "q" else self.num_tokens
        wanted = {row * self.stride + dim for row in range(rows) for dim in range(self.head_dim)}
        if wanted <= loaded:
            return None
        what = (
            f"the program should load elements {ranges(sorted(wanted))} of `{name}`; yours loads "
            f"{ranges(sorted(loaded))}."
        )
        dense = {row * self.head_dim + dim for row in range(rows) for dim in range(self.head_dim)}
        if not loaded:
            idea = f"`tl.load({name} + offsets, ...)` gets the elements; `{name}` alone is an address."
            if name != "q":
                idea += " If you have such a line: is its mask False everywhere?"
        elif name == "q":
            idea = "A query has HEAD_DIM elements: `tl.load(q + dim)`."
        elif dense <= loaded:
            idea = "That would be right if there were no gaps. Two slots are `stride_slot` apart, not HEAD_DIM."
        elif loaded == {row * self.stride + dim for row in range(rows - 1) for dim in range(self.head_dim)}:
            idea = "The newest token is left out. `num_tokens` includes it: `slot < num_tokens`."
        elif len({offset // self.stride for offset in loaded}) == 1 and rows > 1:
            idea = "Only one key was read. The offsets form a rectangle: one row per slot, one column per element."
        else:
            idea = (
                "The offsets form a rectangle: one row per slot, `slot[:, None] * stride_slot`, one column per "
                "element, `dim[None, :]`. The mask says which slots hold a key: `slot < num_tokens`."
            )
        return Mistake(what, case=self.text, idea=idea)

    def want(self) -> torch.Tensor:
        return self._over(self.num_tokens)

    def _over(self, count: int, scale: float | None = None, keys=None, values=None) -> torch.Tensor:
        keys, values = (self.k if keys is None else keys), (self.v if values is None else values)
        scores = keys[:count].double() @ self.q.double() * (self.scale if scale is None else scale)
        return scores.softmax(dim=0) @ values[:count].double()

    def _wrong_ideas(self) -> Iterator[tuple[str, torch.Tensor]]:
        n, scale = self.num_tokens, self.scale
        scores, values = self.k.double() @ self.q.double() * scale, self.v.double()
        weights = (scores[:n] - scores[:n].max()).exp()
        summed = weights @ values[:n]
        yield "The scores are not multiplied by `scale`.", self._over(n, 1.0)
        yield "The scores are multiplied by `scale` twice.", self._over(n, scale**2)
        yield "You divided by `scale`. It is already 1 / sqrt(head size): multiply.", self._over(n, 1 / scale)
        yield (
            "The scores are multiplied by 1 / sqrt(HEAD_DIM). Multiply by `scale`: a model may use another factor.",
            self._over(n, self.head_dim**-0.5),
        )
        yield "You multiplied the result by `scale`. It is a factor of the scores.", self._over(n, 1.0) * scale
        yield "You multiplied the result by `scale` as well. It is a factor of the scores only.", self._over(n) * scale
        if n < self.size:
            yield (
                "Slots without a token count in your result. Only slots with `slot < num_tokens` hold keys; the scores "
                "of the others must be minus infinity, so that their weights are 0.",
                self._over(self.size),
            )
            yield (
                "One key too many counts. Slots count from 0: `slot < num_tokens`, not `<=`.",
                self._over(n + 1),
            )
            missing = torch.cat([scores[:n], torch.zeros(self.size - n)])
            yield (
                "Slots without a token have a score of 0 here, and exp(0 − maximum) is a weight like any other. "
                'Replace their scores: `tl.where(is_key, scores, float("-inf"))`.',
                missing.softmax(dim=0)[:n] @ values[:n],
            )
            yield (
                "The sum of the weights is too large, by 1 for each slot without a token. Their weights are 0.",
                summed / (weights.sum() + self.size - n),
            )
        if n > 1:
            yield "The newest token is left out: `slot < num_tokens`.", self._over(n - 1)
        yield (
            "The result is not divided by the sum of the weights. If you do divide: is it the sum of all of them, "
            "`tl.sum`? The largest weight alone is 1.",
            summed,
        )
        yield "The values are added without their weights.", values[:n].sum(dim=0) / weights.sum()
        yield "You divided by the number of tokens. Divide by the sum of the weights.", summed / n
        yield "You divided by BLOCK_SIZE. Divide by the sum of the weights.", summed / self.size
        yield "The result is not divided by the sum of the weights.", scores[:n].exp() @ values[:n]
        yield "You divided by the sum of the scores. Divide by the sum of the weights.", summed / scores[:n].sum()
        yield (
            "The smallest score has the largest weight. Is the sign of the scores wrong, or the order in the exponent? "
            "The weights are exp(score − maximum).",
            (-scores[:n]).softmax(dim=0) @ values[:n],
        )
        yield "The exponential is missing: the weights are exp(score − maximum).", scores[:n] @ values[:n]
        yield (
            "The exponential is missing: the weights are exp(score − maximum).",
            (scores[:n] / scores[:n].sum()) @ values[:n],
        )
        yield "You used the keys as values: the weights multiply the values.", self._over(n, values=self.k)
        yield "You used the values as keys: the scores are query · key.", self._over(n, keys=self.v)
        yield "Keys and values are swapped.", self._over(n, keys=self.v, values=self.k)
        yield (
            "All weights are equal: this is the plain mean of the values. There is one score per key, the sum over its "
            "elements: is yours along `axis=1`?",
            values[:n].mean(dim=0),
        )
        yield "These are powers of 2. A softmax takes powers of e: `tl.exp`.", self._over(n, scale * 0.6931471805599453)

    def recognize(self, got: torch.Tensor) -> str:
        want = self.want()
        return next((i for i, formed in self._wrong_ideas() if close(got, formed) and not close(formed, want)), "")

    def why_deep(self) -> str:
        if self.scores != "deep":
            return ""
        return (
            'Something counted for more than the only key, whose score is that low. What stands for "no key" must be '
            "minus infinity, which is below every score."
        )

    def why_not_finite(self, got: torch.Tensor, finite: torch.Tensor) -> str:
        if bool(got.isfinite().all()):
            return ""
        if close(finite, self.want()):
            return (
                "Slots without a token were used. A weight of 0 doesn't help: 0 × NaN is NaN. Give the loads of keys "
                "and of values the mask `is_key[:, None]`, with `other=0.0`."
            )
        if self.scores == "high":
            return (
                "exp(200) overflows float32, and exp(−200) is 0: NaN comes from ∞ / ∞, or from 0 / 0. Subtract the "
                "largest of the scores that you exponentiate, so that the largest exponent is exactly 0."
            )
        if self.scores == "low":
            return (
                "exp(−200) is 0 in float32, and 0 / 0 is NaN. Subtract the largest score of the keys. If you do: a "
                "slot without a token has a score of 0, which is above all of them, until minus infinity replaces it."
            )
        if self.num_tokens == self.size:
            return (
                "Every slot holds a token here, and nothing should be masked. NaN is −∞ − (−∞) or 0 / 0: were all "
                "scores replaced? `tl.where(condition, a, b)` takes `a` where the condition is True."
            )
        return (
            "NaN comes from 0 × NaN, 0 / 0 or −∞ − (−∞). Without `other`, masked elements may be anything, here NaN: "
            "load keys and values with `other=0.0`, and replace scores, not weights, where there is no key."
        )
