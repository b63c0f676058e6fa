"""What can't be served is refused with a sentence that names the value and the remedy, before anything is computed."""

import shutil

import pytest
import torch
from oracle import TINY_TOKENIZER

from lessons_lib.batching.continuous_batching import NoProgress, batch_generate
from lessons_lib.batching.greedy import generate_one_by_one
from lessons_lib.batching.packed_logits import packed_generate
from lessons_lib.batching.ragged_batching import RaggedBatch, ragged_generate
from lessons_lib.batching.request import IllegalTransition, Request, RequestState
from lessons_lib.batching.slots import SlotManager
from lessons_lib.batching.static_batching import static_generate
from lessons_lib.models.loading import BUNDLED_MODEL, DamagedModel, ModelNotFound, load_model
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.models.validate import BadRequest
from lessons_lib.recording.forward_passes import watch_forwards
from lessons_lib.recording.serving import record_run

GOOD = [5, 6, 7]


def one_by_one(prompts, **kwargs):
    return record_run(generate_one_by_one, tiny_model(), TINY_TOKENIZER, prompts, **{"max_new_tokens": 4} | kwargs)


def static(prompts, **kwargs):
    return record_run(static_generate, tiny_model(), TINY_TOKENIZER, prompts, **{"max_new_tokens": 4} | kwargs)


def continuous(prompts, **kwargs):
    return record_run(batch_generate, tiny_model(), TINY_TOKENIZER, prompts, **{"max_new_tokens": 4} | kwargs)


def packed(prompts, **kwargs):
    return record_run(packed_generate, tiny_model(), TINY_TOKENIZER, prompts, **{"max_new_tokens": 4} | kwargs)


def ragged(prompts, **kwargs):
    return record_run(ragged_generate, tiny_model(), TINY_TOKENIZER, prompts, **{"max_new_tokens": 4} | kwargs)


WAYS = [one_by_one, static, continuous, packed, ragged]
# (prompts, keyword arguments, words of the message)
REFUSED = [
    ([GOOD, []], {}, "prompt 1 is empty"),
    ([GOOD, [VOCAB_SIZE]], {}, f"token id {VOCAB_SIZE}; the vocabulary has ids 0 to {VOCAB_SIZE - 1}"),
    ([[-1], GOOD], {}, "prompt 0 contains token id -1"),
    ([GOOD, [3] * 300], {}, "prompt 1 has 300 tokens; the context is 256"),
    ([[3] * 256], {}, "Shorten the prompt to 255 tokens or fewer"),
    (
        [[3] * 250],
        {"max_new_tokens": 7},
        "250 tokens and asks for 7 more, 257 in all; the context is 256. Ask for 6 or fewer",
    ),
    ([GOOD], {"max_new_tokens": 0}, "max_new_tokens is 0 for prompt 0; it must be at least 1"),
    ([GOOD, GOOD], {"max_new_tokens": [3, -2]}, "max_new_tokens is -2 for prompt 1"),
    ([GOOD, GOOD], {"max_new_tokens": [3]}, "1 values of max_new_tokens for 2 prompts"),
    ("once", {}, "give a list of prompts"),
    ([GOOD, GOOD], {"names": ["A", "A"]}, "request id 'A' is used 2 times"),
    ([GOOD, GOOD], {"names": ["A"]}, "1 names for 2 prompts"),
]


@pytest.mark.parametrize("serve", WAYS)
@pytest.mark.parametrize("prompts, kwargs, says", REFUSED)
def test_a_bad_request_is_refused_before_anything_is_computed(serve, prompts, kwargs, says):
    with watch_forwards(tiny_model()) as passes, pytest.raises(BadRequest) as refused:
        serve(prompts, **kwargs)
    assert says in str(refused.value)
    assert passes == []


def test_a_step_that_computes_nothing_ends_the_run():
    with pytest.raises(NoProgress, match="a step computed nothing, with 1 requests in the batch and 1 waiting"):
        ragged([GOOD, GOOD], max_num_seqs=1, step=lambda batch: None)


def test_a_request_that_is_not_waiting_is_not_taken_in():
    batch = RaggedBatch(tiny_model(), 2)
    request = Request("A", GOOD, 3, state=RequestState.FINISHED)
    with pytest.raises(IllegalTransition, match="request 'A' is finished"):
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
        continuous([GOOD], **kwargs)


@pytest.mark.parametrize("serve", WAYS)
def test_no_prompts_give_no_answers(serve):
    with watch_forwards(tiny_model()) as passes:
        result = serve([])
    assert result.outputs == [] and result.trace.steps == [] and passes == []


def test_an_unknown_model_is_refused_offline():
    with pytest.raises(ModelNotFound, match="no model 'nobody/nothing'.*load_model\\(\\)"):
        load_model("nobody/nothing")


@pytest.mark.parametrize(
    "file, keep",
    [("model.safetensors", 1000), ("model.safetensors", -100), ("config.json", 20), ("tokenizer.json", 500)],
)
def test_a_damaged_file_is_named(tmp_path, file, keep):
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED_MODEL, folder)
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[:keep])
    with pytest.raises(DamagedModel, match="can't be read.*Fetch the files again"):
        load_model(folder)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(DamagedModel, match="can't be read"):
        load_model(tmp_path)


def test_missing_weights_are_not_made_up(tmp_path):
    model = tiny_model("llama")
    weights = {name: tensor for name, tensor in model.state_dict().items() if "layers.1.mlp.up_proj" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    shutil.copy(BUNDLED_MODEL / "tokenizer.json", tmp_path)
    shutil.copy(BUNDLED_MODEL / "tokenizer_config.json", tmp_path)
    with pytest.raises(DamagedModel, match="lacks 1 weights, such as 'model.layers.1.mlp.up_proj.weight'"):
        load_model(tmp_path)


def test_a_request_goes_only_where_it_may():
    allowed = {
        ("waiting", "prefilling"),
        ("prefilling", "decoding"),
        ("prefilling", "finished"),
        ("decoding", "finished"),
    }
    for before in RequestState:
        for after in RequestState:
            request = Request("A", [1], 3, state=before)
            if (before.value, after.value) in allowed:
                request.move_to(after)
                assert request.state is after
            else:
                with pytest.raises(
                    IllegalTransition, match=f"request 'A' is {before.value}; {after.value} can't follow"
                ):
                    request.move_to(after)
                assert request.state is before


def state_of(slots):
    return list(slots.free), dict(slots.slot_of)


def test_a_slot_is_not_freed_twice():
    slots = SlotManager(2)
    slots.acquire("A")
    slots.acquire("B")
    slots.release("A")
    before = state_of(slots)
    with pytest.raises(ValueError, match="'A' has no slot.*B.*once"):
        slots.release("A")
    assert state_of(slots) == before


def test_the_bundled_model_is_ready_for_inference():
    model, tokenizer = load_model()
    assert model.dtype is torch.float32 and not model.training and tokenizer.pad_token_id is not None
    assert not any(parameter.requires_grad for parameter in model.parameters())
