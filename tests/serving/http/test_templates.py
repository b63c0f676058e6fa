"""Text to tokens: chat templates."""

import asyncio
import copy
import threading

import pytest

from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.http.protocol import ChatRequest
from lessons_lib.serving.http.served_model import ServedModel, bytes_of

CHATML = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% if message.name %}({{ message.name }}){% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT = [{"role": "user", "content": "Hi there!"}, {"role": "assistant", "content": "Sure,"}]


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(BUNDLED_MODEL)


def served(tokenizer, chat_template=None):
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = chat_template
    return ServedModel("m", tokenizer, 1024, 4096)


def written(model, **fields):
    """What the model reads for a request's messages."""
    body = ChatRequest.model_validate({"messages": CHAT} | fields)
    messages = [message.to_template() for message in body.messages]
    return model.decode(asyncio.run(model.encode_chat(messages, **body.template_options())))


def test_a_model_without_a_template_continues_the_messages(tokenizer):
    assert tokenizer.chat_template is None
    assert written(served(tokenizer)) == "Hi there!\nSure,"


@pytest.mark.parametrize("num_messages, is_inline", [(1, True), (17, False)])
def test_many_messages_are_written_outside_the_event_loop(tokenizer, monkeypatch, num_messages, is_inline):
    threads = []
    model = served(tokenizer)
    monkeypatch.setattr(
        model.tokenizer, "apply_chat_template", lambda *_, **__: threads.append(threading.current_thread()) or [5]
    )
    assert written(model, messages=CHAT[:1] * num_messages)
    assert (threads == [threading.current_thread()]) == is_inline


def test_what_a_request_says_about_the_template(tokenizer):
    model = served(tokenizer, CHATML)
    assert written(model) == "<|user|>Hi there!\n<|assistant|>Sure,\n<|assistant|>"
    assert written(model, add_generation_prompt=False) == "<|user|>Hi there!\n<|assistant|>Sure,\n"
    assert written(model, continue_final_message=True) == "<|user|>Hi there!\n<|assistant|>Sure,"
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    messages = [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": parts, "name": "Sue"}]
    assert written(model, messages=messages) == "<|system|>Be brief\n<|user|>A\nB(Sue)\n<|assistant|>"


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('roles must alternate') }}", "{{ messages.__class__.__mro__[1].__subclasses__() }}"],
)
def test_a_template_can_do_nothing_but_write_and_fails_by_the_requests_fault(tokenizer, template):
    with pytest.raises(BadRequest, match=r"roles must alternate|\.__class__|unsafe|access"):
        written(served(tokenizer, template))


def test_texts_that_can_t_fit_aren_t_encoded(tokenizer):
    with pytest.raises(BadRequest, match="131073 characters"):
        asyncio.run(served(tokenizer).encode("a" * (1024 * 128 + 1)))
    assert len(asyncio.run(served(tokenizer).encode("a dog " * 1000))) > 1000  # in a thread


def test_each_token_has_its_bytes(tokenizer):
    text = "Once upon é你🙂\n"
    token_ids = tokenizer(text).input_ids
    assert b"".join(bytes_of(tokenizer, token) for token in token_ids).decode() == text
    assert bytes_of(tokenizer, tokenizer.eos_token_id) == b"<|endoftext|>"
