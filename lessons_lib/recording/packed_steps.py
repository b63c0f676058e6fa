"""Lesson 05: what one step of a ragged batch looked like, as plain data for pictures and for text."""

from dataclasses import dataclass

from lessons_lib.attention.masks import Tags
from lessons_lib.attention.packing import PackedBatch, key_tags, packed_mask
from lessons_lib.recording.mask_text import mask_text


@dataclass(frozen=True)
class PackedStep:
    """One step, after its forward pass.

    Attributes:
        names: the requests of the row, in the order of the row.
        packed: the row.
        new_tokens: the token that each request got.
        joined: requests that were in the batch for the first time: the row has their prompts.
        left: requests that finished in this step.
        waiting: the queue after the step.
        admitted: requests that took a place once the row was computed; the next row has their prompts.
    """

    names: tuple[str, ...]
    packed: PackedBatch
    new_tokens: tuple[int, ...]
    joined: tuple[str, ...]
    left: tuple[str, ...]
    waiting: tuple[str, ...]
    admitted: tuple[str, ...] = ()


def packed_text(step: PackedStep) -> str:
    """The row and its mask in characters: what each token is, and what it attends to (`#`). A `|` parts cached keys from new ones."""
    packed, count = step.packed, len(step.packed.input_ids)
    parts = [
        f"{name} {'prefill' if name in step.joined else 'decode'}: {new} new after {cached} cached"
        for name, new, cached in zip(step.names, packed.new_lens, packed.cached_lens)
    ]
    told = (("left", step.left), ("in the next row", step.admitted), ("waiting", step.waiting))
    events = [f"{word}: {', '.join(who)}" for word, who in told if who]
    mask = mask_text(packed_mask(packed), Tags(packed.seq_ids, packed.positions), key_tags(packed), step.names).split(
        "\n"
    )
    if any(packed.cached_lens):
        mask = [f"{line[:-count]}|{line[-count:]}" for line in mask]
    return "\n".join([" · ".join(parts), *([" · ".join(events)] if events else []), *mask])
