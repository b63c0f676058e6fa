"""A model that writes what a test says, token by token, through the engine's own loop, rules and grammars."""

import contextlib

import torch


@contextlib.contextmanager
def scripted(live, answer):
    """Until the block is left, a live server's model writes `answer(prompt)`; both are texts."""
    tokenizer, runner, texts = live.tokenizer, live.engine.runner, {}
    forward = runner.forward

    def write(scheduler_output):
        sequences = list(scheduler_output.num_scheduled_tokens)
        logits = torch.zeros(len(sequences), runner.model.config.vocab_size)
        for row, sequence in enumerate(sequences):
            prompt = tuple(sequence.prompt_ids)
            if prompt not in texts:
                texts[prompt] = [*tokenizer(answer(tokenizer.decode(prompt))).input_ids, tokenizer.eos_token_id]
            logits[row, texts[prompt][min(len(sequence.output_ids), len(texts[prompt]) - 1)]] = 100.0
        return logits

    runner.forward = write
    try:
        yield
    finally:
        runner.forward = forward


def call(name, **arguments):
    """A call in Hermes's format, which is the bundled model's, since its template has none."""
    fields = ", ".join(f'"{key}": {value!r}'.replace("'", '"') for key, value in arguments.items())
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{{fields}}}}}\n</tool_call>'
