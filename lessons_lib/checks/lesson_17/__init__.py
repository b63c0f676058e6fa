"""Exercises and quiz of lesson 17: an engine of one's own, judged by the conformance suite, and one test; optional: the
project, a break-in."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_17.judging import check_cached_engine, check_first_level, check_small_size
from lessons_lib.checks.lesson_17.quiz import QUIZ
from lessons_lib.conformance.break_in.grading import check_break_in_tests
from lessons_lib.conformance.break_in.one_test import check_one_test

__all__ = ["EXERCISES", "QUIZ"]

ENGINES = ("lessons_lib.conformance.examples", "lessons_lib.conformance.adapters", "lessons_lib.engine")

EXERCISES = [
    Exercise(
        id="17.1",
        title="an engine of your own, first level",
        reference="lessons_lib.conformance.examples.slow_engine:make_engine",
        test=check_first_level,
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
        time_limit=20.0,
        solved_by=ENGINES,
    ),
    Exercise(
        id="17.2",
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
    Exercise(
        id="17.3",
        title="the same engine with a cache",
        reference="lessons_lib.conformance.examples.cached_engine:make_cached_engine",
        test=check_cached_engine,
        hints=(
            "Which tokens does the model have to read in the first step of a request, and which in each later one? And "
            "what has to stay from one step to the next?",
            "In a request's first step, make an empty `DynamicCache` and compute the prompt with it. In each later "
            "step, compute the newest token of the answer alone, with the same cache; the model appends to it. Make "
            "the cache in the first step of each request, so that none is left from the one before, however that "
            "ended.",
            "`if not answer: self.cache = DynamicCache(config=self.model.config)`; `new = answer[-1:] or prompt`; "
            "`token = int(self.model(input_ids=torch.tensor([new]), past_key_values=self.cache).logits[0, -1]"
            ".argmax())`. The solution is in `lessons_lib/conformance/examples/cached_engine.py`.",
        ),
        points=2,
        time_limit=20.0,
        solved_by=ENGINES,
    ),
    Exercise(
        id="17.4",
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
        id="17.5",
        title="the project: an engine of the small size (optional)",
        reference="lessons_lib.conformance.examples.small_engine:make_engine",
        test=check_small_size,
        hints=(
            "One level at a time. Keep the engine of the first level in a file of its own: it is the oracle of the "
            "next one.",
            "For `batches`, a sequence has its tokens, its own cache, and how many tokens it covers. A step admits "
            "sequences while slots are free, takes the uncomputed tokens of each, as far as the budget goes, and packs "
            "them into one row. A sequence gets a token only if all of its tokens are computed by then. For "
            "`manners`, check everything before you append; change sequences only after the pass has returned; and let "
            "a stream be a generator with `try` and `finally`.",
            "With lesson 05's functions: `packed = pack([tokens of each], [cached tokens of each])`, `joined = "
            "concatenate_caches([cache of each])`, `logits = packed_forward(model, packed, joined)`, a row for each "
            "sequence, and `scatter_cache(joined, packed)` for the caches. A stream calls your pass until its request "
            "has a token; tokens that this computes for others wait in a list that the next `step` returns. The "
            "solution, without these functions, is in `lessons_lib/conformance/examples/small_engine.py`.",
        ),
        points=6,
        time_limit=30.0,
        solved_by=ENGINES,
    ),
]
