"""What a recorded run of a packed batch says of each step."""

from lessons_lib.batching.ragged_batching import ragged_generate
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.recording.serving import record_run


class NoTokenizer:
    eos_token_id = None


def test_each_step_says_which_requests_were_in_the_row_and_what_became_of_them():
    prompts = [[5, 6, 7], [8], [9, 10]]
    serve = dict(max_new_tokens=[2, 3, 1], max_num_seqs=2, names="ABC")
    steps = record_run(ragged_generate, tiny_model("llama"), NoTokenizer(), prompts, **serve).packed
    assert [(step.names, step.joined, step.left, step.admitted, step.waiting) for step in steps] == [
        (("A", "B"), ("A", "B"), (), (), ("C",)),
        (("A", "B"), (), ("A",), ("C",), ()),
        (("B", "C"), ("C",), ("B", "C"), (), ()),
    ]
    assert [step.packed.new_lens for step in steps] == [[3, 1], [1, 1], [1, 2]]
    assert [step.packed.cached_lens for step in steps] == [[0, 0], [3, 1], [2, 0]]
