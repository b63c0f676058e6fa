"""The exercises and the quiz of lesson 00.

The checks run on tiny random models that never write the same token twice in a row.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_00.cache_bytes import test_cache_bytes_per_token
from lessons_lib.checks.lesson_00.decode_step import test_decode_step
from lessons_lib.checks.lesson_00.quiz import QUIZ
from lessons_lib.checks.lesson_00.with_cache import test_greedy_with_cache
from lessons_lib.checks.lesson_00.without_cache import test_greedy_without_cache

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="00.1",
        title="Greedy decoding without a cache",
        reference="lessons_lib.batching.greedy:greedy_without_cache",
        test=test_greedy_without_cache,
        hints=(
            "After the first pass, what does the input of the second one consist of? And which row of the logits do "
            "you need, however long the sequence is?",
            "Copy the prompt into a list. In a loop, make a tensor of shape [1, length] from the list, call the model, "
            "take the "
            "argmax at the last position, and append it. Leave the loop when there are max_new_tokens new tokens, or "
            "when the "
            "token you just appended is eos_token_id.",
            "`logits = model(input_ids=torch.tensor([token_ids], device=model.device), use_cache=False).logits` has "
            "shape "
            "[1, length, vocabulary]; the next token is `int(logits[0, -1].argmax())`. At the end, the answer is "
            "`token_ids[len(prompt_ids):]`.",
        ),
    ),
    Exercise(
        id="00.2",
        title="One decode step",
        reference="lessons_lib.batching.greedy:decode_step",
        test=test_decode_step,
        hints=(
            "`prefill`, whose source is above, passes a sequence and a cache to the model. A decode step passes the "
            "same two things. What are they now?",
            "Make a tensor of shape [1, 1] that contains last_token. Call the model with this tensor and the cache. "
            "Return the "
            "argmax of the logits as an int.",
            "`model(input_ids=torch.tensor([[last_token]], device=model.device), past_key_values=cache).logits` has "
            "shape [1, 1, vocabulary]. "
            "The model adds the new key and value to `cache` by itself.",
        ),
    ),
    Exercise(
        id="00.3",
        title="Greedy decoding with a cache",
        reference="lessons_lib.batching.greedy:greedy_with_cache",
        test=test_greedy_with_cache,
        hints=(
            "You have one token before the loop starts. Which two tests does it have to pass before the first decode "
            "step?",
            "`prefill` returns the first new token and the cache. Start the answer with that token. While the answer "
            "is shorter "
            "than max_new_tokens and its last token is not eos_token_id, run one decode step and append what it "
            "returns.",
            "`token, cache = prefill(model, prompt_ids)`, `new_tokens = [token]`, then "
            "`while len(new_tokens) < max_new_tokens and token != eos_token_id:` with `token = decode_step(model, "
            "token, cache)` "
            "and an append in the loop body.",
        ),
    ),
    Exercise(
        id="00.4",
        title="Bytes per token in the cache (optional)",
        reference="lessons_lib.models.configuration:cache_bytes_per_token",
        test=test_cache_bytes_per_token,
        hints=(
            "Draw one token's part of the cache in one layer: how many vectors is it, and how long is each? Only then "
            "look for the fields that say so.",
            "First find the two numbers that a configuration may lack. `getattr(config, name, None)` is None if the "
            "field is missing; test the result before you use it. Then multiply: 2 for key and value, the layers, the "
            "KV heads, the size of a head, the bytes per element.",
            "`kv_heads = getattr(config, 'num_key_value_heads', None) or config.num_attention_heads`, `head_dim = "
            "getattr(config, 'head_dim', None) or config.hidden_size // config.num_attention_heads`. Then "
            "`2 * config.num_hidden_layers * kv_heads * head_dim * bytes_per_element`.",
        ),
    ),
]
