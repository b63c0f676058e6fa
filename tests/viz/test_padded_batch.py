"""The picture of a padded wave, and leaving out what a model is given."""

import pytest
import torch

from lessons_lib.batching.static_batching import generate_wave, left_out, pad_left, positions_from_mask
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.viz.batches.padded_batch import draw_padded_batch


def test_the_picture_hatches_padding_and_shows_tokens_only():
    input_ids, mask = pad_left([[5], [6, 7, 8]], 9)
    tokens = [[f"t{token}" for token in line] for line in input_ids.tolist()]
    picture = draw_padded_batch("AB", tokens, mask.tolist(), positions_from_mask(mask).tolist())
    assert picture.svg.count('fill="url(#hatch-') == 2
    assert "t9" not in picture.svg
    assert all(f">{text}<" in picture.svg for text in ("t5", "t6", "t7", "t8", "0", "1", "2"))
    assert (
        "A has 2 cells of padding, then 1 tokens" in picture.alt and "4 tokens in 6 cells, 2 of padding" in picture.alt
    )


def test_left_out_takes_arguments_away_and_gives_them_back():
    model, seen = tiny_model("gpt2"), []
    watch = model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(set(kwargs)), with_kwargs=True)
    prompts = [[80, 13, 34], [90]]
    try:
        before = generate_wave(model, prompts, [4, 4], 0)
        with left_out(model, "position_ids"):
            changed = generate_wave(model, prompts, [4, 4], 0)
        assert generate_wave(model, prompts, [4, 4], 0) == before
    finally:
        watch.remove()
    assert changed[0] == before[0] and changed[1] != before[1]
    assert len(seen) == 12


def test_left_out_ends_after_an_error():
    model = tiny_model("gpt2")
    with pytest.raises(RuntimeError), left_out(model, "input_ids"):
        raise RuntimeError
    model(input_ids=torch.tensor([[1]]))
