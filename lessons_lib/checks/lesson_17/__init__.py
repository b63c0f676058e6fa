"""Exercises and quiz of lesson 17: an engine of one's own, judged by the conformance suite, and one test; optional: the
project, a break-in."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_17.judging import check_up_to
from lessons_lib.conformance.break_in.grading import check_break_in_tests
from lessons_lib.conformance.break_in.one_test import check_one_test

ENGINES = ("lessons_lib.conformance.examples", "lessons_lib.conformance.adapters", "lessons_lib.engine")

EXERCISES = [
    Exercise(
        id="17.1",
        title="an engine of your own, first level",
        reference="lessons_lib.conformance.examples.slow_engine:make_engine",
        test=check_up_to("answers"),
        hints=(
            "What does your engine have to remember of a request between two steps? And in which order do the reasons "
            "for an end have to be tried?",
            "Keep the requests in a queue: id, prompt, answer so far, parameters. A step computes prompt and answer of "
            "the first one, takes the likeliest token after the last position, and appends it to the answer. The "
            "token decides about `stop`, then the lengths about `length`: `max_tokens`, and prompt and answer "
            "together. With a reason, the request leaves the queue.",
            "`token = int(self.model(input_ids=torch.tensor([prompt + answer])).logits[0, -1].argmax())`; `stop` if "
            "`token in params.stop_token_ids or (token == self.limits.eos_token_id and not params.ignore_eos)`; else "
            "`length` if `len(answer) == params.max_tokens or len(prompt) + len(answer) == "
            "self.limits.max_model_len`; return `[NewTokens(request_id, [token], reason)]`. The solution is in "
            "`lessons_lib/conformance/examples/slow_engine.py`.",
        ),
        points=3,
        time_limit=8.0,
        solved_by=ENGINES,
    ),
    Exercise(
        id="17.2",
        title="the engine that batches",
        reference="lessons_lib.conformance.examples.batching_engine:make_batching_engine",
        test=check_up_to("batches"),
        hints=(
            "Which tokens of a request has no pass computed yet, before its first step and before each later one? And "
            "which requests get a token, if a prompt is computed only in part?",
            "A sequence has its tokens (prompt and answer), its parameters and a cache. A step admits sequences while "
            "slots are free. It goes through them, oldest first, and takes each one's uncomputed tokens, as far as the "
            "budget goes. One pass computes all that was taken. Each sequence gets its new cache; those whose tokens "
            "are all computed get a token, and leave if it ends them.",
            "`computed = sequence.cache.get_seq_length()`; `new = sequence.tokens[computed:][:left]`, and "
            "`left -= len(new)`. Then `packed = pack(all_new, all_computed)`; `joined = concatenate_caches(caches)`; "
            "`logits = packed_forward(self.model, packed, joined)`; `for sequence, cache, token in zip(chosen, "
            "scatter_cache(joined, packed), logits.argmax(-1).tolist())`: keep `cache`; if its length is that of "
            "`sequence.tokens`, append `token`. The solution is in "
            "`lessons_lib/conformance/examples/batching_engine.py`.",
        ),
        points=5,
        time_limit=10.0,
        solved_by=ENGINES,
    ),
    Exercise(
        id="17.3",
        title="one test",
        reference="lessons_lib.conformance.break_in.one_test:test_an_abort",
        test=check_one_test,
        hints=(
            "A request can be aborted in more than one state. And what may an engine still say of it afterwards?",
            "With one batch slot, two requests give you both states: the first runs, the second waits. Abort one of "
            "them after a step, go on until nothing is unfinished, and look at the `token_ids` of each event. Do it "
            "twice, once for each state.",
            "`engine = make_engine(max_num_seqs=1)`; two `engine.add_request(name, [5, 7, 9], Params(max_tokens=4, "
            "ignore_eos=True))`; `engine.step()`; `engine.abort(aborted)`; `while engine.has_unfinished():` `for event "
            "in engine.step():` `assert event.request_id != aborted or not event.token_ids`.",
        ),
        points=2,
        time_limit=20.0,
    ),
    Exercise(
        id="17.4",
        title="the project: an engine that keeps the whole small contract (optional)",
        reference="lessons_lib.conformance.examples.small_engine:make_engine",
        test=check_up_to("small"),
        hints=(
            "What may have changed in your engine when `add_request` raises? When a pass raises? When a reader leaves?",
            "Check everything before you append; change sequences only after the pass has returned; and let a stream "
            "be a generator with `try` and `finally`. Tokens that a stream computes for others wait in a list that the "
            "next `step` returns.",
            "A stream keeps a queue of its own events in a dict, from its id. Your pass puts an event there if its "
            "request is a stream's, and returns it otherwise. The generator adds the request; calls the pass until its "
            "queue has an event, and keeps what the pass returns for `step`; yields the event's tokens; and in "
            "`finally` deletes its queue and aborts. The solution is in "
            "`lessons_lib/conformance/examples/small_engine.py`.",
        ),
        points=4,
        time_limit=10.0,
        solved_by=ENGINES,
    ),
    Exercise(
        id="17.5",
        title="the break-in: tests that find twelve mistakes (optional)",
        reference="lessons_lib.conformance.break_in.examples:break_in_tests",
        test=check_break_in_tests,
        hints=(
            "Most of these engines answer one request alone as they should. Ask what differs when there are two, when "
            "one of them leaves, and when memory is short.",
            "One helper is worth writing first: serve a request alone in a new engine. Then nearly every test has the "
            "same form. Serve the request in a situation, and compare tokens, text, or `num_free_blocks()` with "
            "before. The situations: a seed and company, a stop string of several tokens, characters of several "
            "tokens, a refusal, an abort of a running request, a client that leaves, the last event of a stream, a "
            "pool of few blocks, prompts with equal blocks, prompts with the same beginning.",
            "For pressure: `make_engine(num_blocks=6)` and two prompts of 8 tokens with 12 new tokens each. For a "
            "disconnect: `events = engine.events(...)`, `next(events)`, `events.close()`, then `num_free_blocks()` is "
            "128 again. For slots: `make_engine(max_num_seqs=2)`, abort one that runs, add two, and one `step()` must "
            "return tokens of both. For texts: temperature 4 and a seed, and compare with `text_of(tokens)`. For "
            "sharing: two requests with the same 17 tokens, abort one, add others that take what is free.",
        ),
        points=12,
        time_limit=20.0,
        in_parts=True,
    ),
]
