"""The exercises and the quiz of lesson 13: graphs that are never stale, tokens that aren't known yet, a draw on the
device."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_13.drawing import check_draw_on_device
from lessons_lib.checks.lesson_13.overlapping import check_overlapped_step
from lessons_lib.checks.lesson_13.placeholders import check_next_tokens, check_replace_placeholders
from lessons_lib.checks.lesson_13.quiz import QUIZ
from lessons_lib.checks.lesson_13.stale_graphs import check_graph_store

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="13.1",
        title="graphs that are never stale",
        reference="lessons_lib.engine.cuda_graphs:GraphStore",
        test=check_graph_store,
        hints=(
            "Imagine every way in which the engine can put something else where the graph reads. For each, what about "
            "the tensors changes: the address, the object, or only the values?",
            "The key has three parts: the addresses of all inputs and weights, in order; something that tells views at "
            "the same address apart, which `id` does for the inputs; and the settings. `run` captures if `has` says "
            "no. It stores the key together with the graph, after the capture has succeeded, and replays in any case.",
            "`key_of`: `addresses = [tensor.data_ptr() for tensor in [*inputs, *weights]]`, then `return "
            "addresses, [id(tensor) for tensor in inputs], settings`. `run`: if `has` says no, `replay, output = "
            "self.capture(step)`, `self.graphs[size] = Graph(key, keeps(), replay, output)` and `self.num_captured += "
            "1`; then `self.graphs[size].replay()` and `return self.graphs[size].output`.",
        ),
        points=3,
    ),
    Exercise(
        id="13.2",
        title="tokens that aren't known yet",
        reference="lessons_lib.engine.input_batch:next_tokens",
        test=check_next_tokens,
        hints=(
            "For each sequence, which of its tokens are scheduled: from which index to which? And how many of them "
            "have an id already?",
            "Join the prompt and the output, and take `count` of them from `num_computed_tokens` on. "
            "If that gives fewer tokens than are scheduled, the missing one is in flight, and gets a placeholder.",
            "For each `sequence, count` of `scheduler_output.num_scheduled_tokens.items()`: `start = "
            "sequence.num_computed_tokens`; `known = sequence.token_ids[start : start + count]`; add `known` to the "
            "list, and if `len(known) < count`, add `-1 - previous_rows[sequence]`.",
        ),
        points=2,
    ),
    Exercise(
        id="13.3",
        title="steps that overlap",
        reference="lessons_lib.engine.core:overlapped_step",
        test=check_overlapped_step,
        hints=(
            "Draw two lines, the CPU's and the device's. At which moments does the device have nothing to do, and "
            "which of your calls make it wait? And when must it wait?",
            "Schedule. If a preempted sequence "
            "has a placeholder, process all, and drop what has finished by that. Launch, and append the step to "
            "`in_flight` if there is one. Then process all but the last `loop.depth`, or all if nothing was launched.",
            "`scheduler_output = loop.schedule()`; `if "
            "any(victim.num_placeholders for victim in scheduler_output.preempted):` then `loop.process(0)` and "
            "`scheduler_output.drop_finished()`; `launched = loop.launch(scheduler_output)`; `if launched: "
            "loop.in_flight.append(launched)`; `loop.process(loop.depth if launched else 0)`.",
        ),
        points=3,
    ),
    Exercise(
        id="13.4",
        title="placeholders replaced on the GPU (optional)",
        reference="lessons_lib.attention.custom_op:replace_placeholders",
        test=check_replace_placeholders,
        hints=(
            "Compute something for *every* id, known or not, and choose afterwards. Then nothing depends on a value.",
            "For a placeholder, the index is −1 − id. For a known id that formula gives a negative number, so raise it "
            "to an index that always exists. Look all of them up, and choose with `torch.where`.",
            "`index = (-1 - input_ids).clamp(min=0)`; `torch.where(input_ids < 0, previous_tokens[index], input_ids)`.",
        ),
        points=1,
    ),
    Exercise(
        id="13.7",
        title="a draw that the CPU doesn't wait for (optional)",
        reference="lessons_lib.engine.plain_sampling:draw_on_device",
        test=check_draw_on_device,
        hints=(
            "Draw for every row, whatever its temperature is, and look for the likeliest token of every row. Which of "
            "the two a row gets is decided at the end, for all rows at once.",
            "Subtract the largest logit of each row, divide by its temperature, and take `exp`: these are the weights. "
            "Each token gets a number from `random_numbers`, with seeds and positions as columns. −log(1 − number), "
            "divided by the weight, is its time. `torch.where` takes the fastest token or the likeliest.",
            "`highest, likeliest = logits.float().max(dim=-1, keepdim=True)`; `weights = ((logits - highest) / "
            "temperature[:, None]).exp()`; `numbers = random_numbers(seeds[:, None], positions[:, None], "
            "torch.arange(logits.shape[-1], device=logits.device))`; `drawn = (weights / "
            "-torch.log1p(-numbers)).argmax(dim=-1)`; `return torch.where(temperature > 0, drawn, likeliest[:, 0])`.",
        ),
        points=3,
    ),
]
