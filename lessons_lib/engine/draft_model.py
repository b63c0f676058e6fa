"""Lesson 18: the smaller model that comes with the bundled one."""

from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel

from lessons_lib.models.loading import BUNDLED_DRAFT, no_progress_bar


def bundled_draft(target: PreTrainedModel) -> PreTrainedModel:
    """The draft of the bundled model, on the device and in the dtype of the larger one."""
    with no_progress_bar():
        loaded: Any = AutoModelForCausalLM.from_pretrained(BUNDLED_DRAFT, dtype=target.dtype, local_files_only=True)
    draft: PreTrainedModel = loaded.eval().requires_grad_(False).to(target.device)
    return draft
