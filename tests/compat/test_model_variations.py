"""Random variations of models and engines, in small; `python tests/support/model_variations.py` checks thousands."""

from collections import Counter

import torch
from how_many import by_day
from hypothesis import given, settings
from model_variations import ROUNDING, Variation, check, packed_families, variations
from served_architectures import WRONG

from lessons_lib.engine.core import EngineCore


@settings(max_examples=by_day(12, 25))
@given(variations(packed_families()))
def test_a_variation_is_served_right_or_refused(variation):
    outcome = variation.outcome()
    assert outcome.verdict != WRONG, outcome.reason


def test_a_wrong_answer_is_found_and_the_smallest_variation_printed(monkeypatch, capsys):
    forward, reasons = EngineCore.forward, Counter()
    monkeypatch.setattr(EngineCore, "forward", lambda core, output: -forward(core, output))
    assert check("llama", 1, 0, reasons)["FAILED"]
    assert "llama: AssertionError: prompt 0: " in (printed := capsys.readouterr().out)
    assert "changes={}, prompts=[(1, 0, 1)], n=1" in printed


def test_a_difference_that_is_gone_in_float64_is_rounding(monkeypatch):
    forward = EngineCore.forward
    sign = {torch.float32: -1, torch.float64: 1}
    monkeypatch.setattr(
        EngineCore, "forward", lambda core, output: sign[core.runner.model.dtype] * forward(core, output)
    )
    small = Variation("llama", {}, [(1, 0, 1)], 1, 0, dict(block_size=4, max_model_len=None))
    assert small.outcome().verdict == ROUNDING
