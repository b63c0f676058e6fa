"""Check 01.4 shows a line of the learner's code only if the mistake is in it."""

import torch
from transformers import DynamicCache

from lessons_lib.batching.static_batching import pad_left, positions_from_mask
from lessons_lib.checks import check


@torch.inference_mode()
def never_advances_positions(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    cache, answers, positions = DynamicCache(config=model.config), [[] for _ in prompt_ids], positions_from_mask(mask)
    for step in range(max(max_tokens_each)):
        inputs = dict(input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        input_ids = model(**inputs).logits[:, -1].argmax(-1)[:, None]
        for answer, token in zip(answers, input_ids[:, 0].tolist()):
            answer.append(token)
        mask = torch.cat([mask, torch.ones_like(input_ids)], 1)
        positions = positions[:, -1:]
        if step > 0:
            answers[len(prompt_ids)] = "fails only because of an earlier mistake"
    return answers


def test_the_line_of_an_exception_that_only_followed_is_not_shown(capsys):
    check("01.4", never_advances_positions)
    printed = capsys.readouterr().out
    assert "gave row 0 position 2" in printed and "of your cell" not in printed
