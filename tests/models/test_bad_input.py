"""What can't be served is refused with a sentence that names the value and the remedy, before anything is computed."""

import pytest
import torch
from oracle import TINY_TOKENIZER

from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.greedy import generate_one_by_one
from lessons_lib.batching.packed_logits import packed_generate
from lessons_lib.batching.paged_batching import paged_generate
from lessons_lib.batching.ragged_batching import NoProgress, RaggedBatch, ragged_generate
from lessons_lib.batching.request import Request, RequestState
from lessons_lib.batching.static_batching import static_generate
from lessons_lib.models.loading import DamagedModel, ModelNotFound, load_model
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.models.validate import BadRequest
from lessons_lib.recording.forward_passes import watch_forwards
from lessons_lib.recording.serving import record_run

GOOD = [5, 6, 7]
WAYS = (generate_one_by_one, static_generate, batch_generate, packed_generate, ragged_generate, paged_generate)


def serve(way, prompts, **kwargs):
    return record_run(way, tiny_model(), TINY_TOKENIZER, prompts, **{"max_new_tokens": 4} | kwargs)


REFUSED = [
    ([GOOD, []], {}, "prompt 1 is empty"),
    ([GOOD, [VOCAB_SIZE]], {}, f"token id {VOCAB_SIZE}; the vocabulary has ids 0 to {VOCAB_SIZE - 1}"),
    ([[-1], GOOD], {}, "prompt 0 contains token id -1"),
    ([GOOD, [3] * 300], {}, "prompt 1 has 300 tokens; the context is 256"),
    ([[3] * 256], {}, "Shorten the prompt to 255 tokens or fewer"),
    (
        [[3] * 250],
        {"max_new_tokens": 7},
        "250 tokens and asks for 7 more, 257 in all; the context is 256. Ask for 6 or",
    ),
    ([GOOD], {"max_new_tokens": 0}, "max_new_tokens of prompt 0 is 0; it must be an integer of at least 1"),
    ([GOOD, GOOD], {"max_new_tokens": [3, -2]}, "max_new_tokens of prompt 1 is -2"),
    ([GOOD, GOOD], {"max_new_tokens": [3]}, "1 values of max_new_tokens for 2 prompts"),
    ("once", {}, "give a list of prompts"),
    ([GOOD, GOOD], {"names": ["A", "A"]}, "request id 'A' is used 2 times"),
    ([GOOD, GOOD], {"names": ["A"]}, "1 names for 2 prompts"),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_bad_request_is_refused_before_anything_is_computed(way):
    for prompts, kwargs, says in REFUSED:
        with watch_forwards(tiny_model()) as passes, pytest.raises(BadRequest) as refused:
            serve(way, prompts, **kwargs)
        assert says in str(refused.value)
        assert passes == []
    with watch_forwards(tiny_model()) as passes:
        result = serve(way, [])
    assert result.outputs == [] and result.trace.steps == [] and passes == []


def test_a_step_that_computes_nothing_ends_the_run():
    with pytest.raises(NoProgress, match="a step computed nothing, with 1 requests in the batch and 1 waiting"):
        serve(ragged_generate, [GOOD, GOOD], max_num_seqs=1, step=lambda batch: None)


def test_a_request_that_is_not_waiting_is_not_taken_in():
    batch = RaggedBatch(tiny_model(), 2)
    request = Request("A", GOOD, 3, state=RequestState.FINISHED)
    with pytest.raises(BadRequest, match="request 'A' is finished"):
        batch.submit(request)
    assert not batch.running and not batch.waiting and not batch.caches and request.state is RequestState.FINISHED


def test_an_id_is_used_once_at_a_time():
    batch = RaggedBatch(tiny_model(), 1)
    batch.submit(Request("A", GOOD, 3))
    with pytest.raises(BadRequest, match="request id 'A' is in the batch already"):
        batch.submit(Request("A", GOOD, 3))
    assert len(batch.running) == 1 and not batch.waiting


@pytest.mark.parametrize(
    "kwargs, says",
    [
        ({"prefill_step": 0}, "prefill_step is 0; it must be at least 1"),
        ({"max_seq_len": 300}, "the maximum sequence length is set to 300; it must be 2 to 256"),
        ({"max_seq_len": 0}, "the maximum sequence length is set to 0"),
        ({"max_seq_len": 6}, "3 tokens and asks for 4 more, 7 in all; the context is 6"),
    ],
)
def test_sizes_of_the_slots(kwargs, says):
    with pytest.raises(BadRequest, match=says):
        serve(batch_generate, [GOOD], **kwargs)


def test_an_unknown_model_is_refused_offline():
    with pytest.raises(ModelNotFound, match="no model 'nobody/nothing'.*load_model\\(\\)"):
        load_model("nobody/nothing")


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(DamagedModel, match="can't be read"):
        load_model(tmp_path)


def test_the_bundled_model_is_ready_for_inference():
    model, tokenizer = load_model()
    assert model.dtype is torch.float32 and not model.training and tokenizer.pad_token_id is not None
    assert not any(parameter.requires_grad for parameter in model.parameters())
