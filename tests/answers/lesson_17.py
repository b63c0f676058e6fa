"""Answers to the exercises of lesson 17. A wrong one is what the check must say, and below what changes in the reference
(see `mistakes`); the right ones are built in another way."""

import os
import warnings
from collections import deque

import torch

from answers import Wrong
from lessons_lib.checks.diagnosis import mistakes
from lessons_lib.conformance.adapters import course
from lessons_lib.conformance.break_in import one_test
from lessons_lib.conformance.break_in.examples import break_in_tests
from lessons_lib.conformance.contract import NewTokens, Params
from lessons_lib.conformance.examples.batching_engine import BatchingEngine
from lessons_lib.conformance.examples.slow_engine import SlowEngine
from lessons_lib.conformance.examples.small_engine import SmallEngine
from lessons_lib.engine.sampling_params import SamplingParams


def of(engine_class):
    def make_engine(model, limits, tokenizer):
        return engine_class(model, limits)

    return make_engine


def changed(reference, text, made=of, **names):
    with warnings.catch_warnings(action="ignore"):  # Python's own, of an `assert` of a tuple
        return [Wrong(each.why, made(each.attempt(reference)), each.why) for each in mistakes(text, **names)]


def no_engine(model, limits, tokenizer):
    return None


def imports_a_broken_file(model, limits, tokenizer):
    return compile("x = 1\ndef step(self)\n", "my_serving/engine.py", "exec")


NOTHING = Wrong("returns nothing", no_engine, "returned NoneType, which has no `add_request`")

# 17.1: one request at a time

ALONE = """
The first 2 tokens are the same; then they differ
~ logits[0, -1] => logits[0, 0]
Past the context the model's positions mean nothing
~ == self.limits.max_model_len => == 64
a prompt of 40 tokens, with a context of 40: add_request took it
~ >= self.limits.max_model_len => >= 64
25 is the end token of these `limits`
~ token == self.limits.eos_token_id => token == 12
a prompt of 64 tokens, with a context of 64: add_request took it
- if len(prompt_ids) >= ... raise
step() without a request raised IndexError
- if not self.requests ... return
right but for its first token
- self.requests.append
+ self.requests.append((request_id, list(prompt_ids), [self.next_token(list(prompt_ids), [])], params))
Does max_tokens count the prompt
~ len(answer) == params.max_tokens => len(prompt) + len(answer) == params.max_tokens
it has 15 tokens now
~ list(prompt_ids), [] => prompt_ids, prompt_ids
~ [prompt + answer] => [prompt]
~ len(answer) => getattr(self, "grown", 0)
- answer.append
+ answer.append(token)
+ self.grown = getattr(self, "grown", 0) + 1
- self.requests.popleft
+ self.requests.popleft()
+ self.grown = 0
Are these the same tokens again?
~ [token], reason => list(answer), reason
token_ids is 59; it must be a list
~ [token], reason => token, reason
step() returned NewTokens; it must be a list
~ [NewTokens(request_id, [token], reason)] => NewTokens(request_id, [token], reason)
step() returned a list with a tuple
~ [NewTokens(request_id, [token], reason)] => [(request_id, [token], reason)]
it must be an int from 0 to 96
~ int(self.model => (self.model
~ .argmax()) => .argmax().float().item())
passes. The contract allows one a step
- token = self.next_token
+ token, tokens, reason = 0, [], None
+ while not reason:
+     token = self.next_token(prompt, answer)
+     tokens.append(token)
+     answer.append(token)
+     full = len(answer) == params.max_tokens or len(prompt) + len(answer) == self.limits.max_model_len
+     ended = token in params.stop_token_ids or (token == self.limits.eos_token_id and not params.ignore_eos)
+     reason = "stop" if ended else "length" if full else None
+ answer.pop()
~ [token], reason => tokens, reason
A request was lost
- self.requests.append => self.requests = deque([(request_id, list(prompt_ids), [], params)])
the answer should have ended there
~ token in params.stop_token_ids => token in params.stop_token_ids[:1]
and step 3 has changed that list
~ [token], reason => self.ids, reason
- if reason
+ self.ids = getattr(self, "ids", [])
+ self.ids[:] = [token]
+ ...
has_unfinished() of the second is True
~ self.model, self.limits = model, limits => self.model, self.limits, self.requests = model, limits, ALL
- self.requests: deque
told the end of the only request
~ bool(self.requests) => bool(self.requests) or self.lag.pop() if getattr(self, "lag", []) else bool(self.requests)
- if reason
+ if reason:
+     self.lag = [True]
+ ...
every request has ended, but has_unfinished() is still True
~ bool(self.requests) => True
it got 8 tokens and no finish_reason. These are all
~ [token], reason => [token], None
The context of 64 tokens is full
~ [token], reason => [token], reason if is_end or len(answer) == params.max_tokens else None
Its last token ends it
~ [token], reason => [token], None if is_end else reason
One more step() served it
~ bool(self.requests) => any(answer for _, _, answer, _ in self.requests)
add_request ran the model: 15 tokens
> self.requests.append => self.next_token(list(prompt_ids), [])
A request ends once
- self.requests.popleft => pass
is 12, the end token, and the request has `ignore_eos`
~ (token == self.limits.eos_token_id and not params.ignore_eos) => token == self.limits.eos_token_id
tokens are right, and 1 missing
~ [token], reason => [] if reason else [token], reason
finish_reason is 'eos'
~ "stop" if is_end => "eos" if is_end
The contract says it: read `NewTokens` in
~ "stop" if is_end else "length" if is_full else None => "length" if is_full else "stop" if is_end else None
answers.end_token_in_the_prompt
~ token == self.limits.eos_token_id and => self.limits.eos_token_id in [*prompt, token] and
stop_token_ids [25], qwen2
~ token in params.stop_token_ids or (token => (token
stop_token_ids [25], ignore_eos
~ token in params.stop_token_ids or => token in params.stop_token_ids and not params.ignore_eos or
stop_token_ids [0], qwen2
~ token in params.stop_token_ids or ( => token in params.stop_token_ids or not params.stop_token_ids and (
and here also a stop token of the request
~ token in params.stop_token_ids or => token in {*params.stop_token_ids} - {12 * params.ignore_eos} or
answers.full_context
~ >= self.limits.max_model_len => + params.max_tokens >= self.limits.max_model_len
a request that was refused is still there
- if len(prompt_ids) >= ... raise
- self.requests.append
+ self.requests.append((request_id, list(prompt_ids), [], params))
+ if len(prompt_ids) + params.max_tokens > self.limits.max_model_len:
+     raise ValueError("too long")
add_request refused a request that is right (prompt of 5 tokens, max_tokens 3, ignore_eos)
- if len(prompt_ids) >=
+ self.ids = getattr(self, "ids", [])
+ self.ids.append(request_id)
+ if len(prompt_ids) >= self.limits.max_model_len or self.ids.count(request_id) > 1:
"""


class TakingTurns:
    """A cache for each request, which take turns; the end is told one step after the last token."""

    def __init__(self, model, limits):
        self.model, self.limits, self.requests, self.ends = model, limits, {}, []

    def add_request(self, request_id, prompt_ids, params):
        if len(prompt_ids) + params.max_tokens > self.limits.max_model_len:
            raise TypeError("too long")
        self.requests[request_id] = [list(prompt_ids), None, params.max_tokens, params]

    @torch.inference_mode()
    def step(self):
        if self.ends:
            return [self.ends.pop()]
        if not self.requests:
            return []
        request_id = next(iter(self.requests))
        new, cache, left, params = self.requests.pop(request_id)
        out = self.model(input_ids=torch.tensor([new]), past_key_values=cache, use_cache=True)
        token = out.logits[0, -1].argmax().item()
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else (self.limits.eos_token_id,))}
        if token in ends or left == 1:
            self.ends = [NewTokens(request_id, [], "stop" if token in ends else "length")]
        else:
            self.requests[request_id] = [[token], out.past_key_values, left - 1, params]
        return [NewTokens(request_id, [token])]

    def has_unfinished(self):
        return bool(self.requests or self.ends)


# 17.2: many at once

BATCHES = """
the cache has 7 tokens, and the cached lengths are [6]
~ [sequence.num_computed for => [max(sequence.num_computed - 1, 0) for
The first token is the same; then they differ
~ zip(chosen, caches => zip(chosen, caches[::-1]
max_num_seqs is 3
~ and len(self.running) < self.limits.max_num_seqs => and len(self.running) < 4
a batch that waits for its longest request is static batching
~ while self.waiting and len => while not getattr(self, "full", False) and self.waiting and len
< chosen = self.choose => self.full = bool(self.running)
New prompts must not stop the requests that run
~ for sequence in self.running: => for sequence in [each for each in self.running if each.num_computed < each.num_prompt] or self.running:
`while`, not `if`
~ while self.waiting and len => if self.waiting and len
It is that of request 'r2': which row is whose
~ logits.argmax(dim=-1).tolist() => logits.argmax(dim=-1).tolist()[::-1]
is what a pass has computed kept
- sequence.cache = cache => pass
and a step may compute 8: so compute a part
~ while self.waiting and len => while self.waiting and len(self.waiting[0].tokens) <= self.limits.max_num_batched_tokens and len
batches.first_come
~ self.waiting.popleft() => self.waiting.pop()
four prompts of 10 tokens and answers of 50 need 236
- sequence.cache = cache
+ sequence.cache = DynamicCache([(layer.keys[:, :, :-1], layer.values[:, :, :-1]) for layer in cache.layers])
~ if sequence.num_computed < len => if sequence.num_computed + 1 < len
4 requests of 30 tokens at once, with max_num_seqs 4, took
~ return chosen => return chosen[:1]
12 requests of 30 tokens at once, with max_num_seqs 12, took
~ len(self.running) < self.limits.max_num_seqs => len(self.running) < min(4, self.limits.max_num_seqs)
Eight passes of 8 are enough
~ left = [], self.limits.max_num_batched_tokens => left = [], self.limits.max_num_batched_tokens - 1
got its first token before
~ in self.running: => in sorted(self.running, key=lambda each: len(each.tokens) - each.num_computed):
max_num_batched_tokens is 8, and a pass of the model computed 60
~ self.limits.max_num_batched_tokens => 64
max_num_batched_tokens is 8, and a pass of the model computed 19
- left -= len(new) => pass
`generate` gives
- if sequence.num_computed < ... continue
One more step() served it
~ bool(self.waiting or self.running) => bool(self.running)
a NewTokens came without tokens and without a reason
~ continue => events.append(NewTokens(sequence.request_id, [])); continue
returned the same list as step
~ events = [] => events = self.events = getattr(self, "events", []); events.clear()
in step 3: token 9 came, and max_tokens is 8
~ NewTokens(sequence.request_id => NewTokens(self.running[0].request_id
"""


class PromptsFirst(SmallEngine):
    """Prefills before decodes, and ends with "error" what was in a pass that failed."""

    def choose(self):
        self.running.sort(key=lambda sequence: sequence.num_computed > 0)
        return super().choose()

    def compute(self):
        try:
            return super().compute()
        except RuntimeError:
            failed, self.running = self.running, []
            ends = [NewTokens(each.request_id, [], "error") for each in failed]
            for end in ends:
                self.streams.get(end.request_id, deque()).append(end)
            return [end for end in ends if end.request_id not in self.streams]


class OnlyTheNamesOfTheContract:
    """Keeps an engine instead of being one."""

    def __init__(self, model, limits):
        engine = SmallEngine(model, limits)
        self.add_request, self.step, self.abort = engine.add_request, engine.step, engine.abort
        self.has_unfinished, self.stream = engine.has_unfinished, engine.stream


def the_course(model, limits, tokenizer):
    return course.make_engine(model, limits, tokenizer)


# 17.4: the whole small contract

MANNERS = """
manners.empty_prompt
- if not prompt_ids ... raise
manners.unknown_token
- if wrong := ... raise
a model whose vocabulary has 61
~ self.model.config.vocab_size => 97
manners.unknown_token` is broken
~ 0 <= token < vocabulary => token < vocabulary
max_tokens 0: add_request took it
- if params.max_tokens < 1 ... raise
of a request that waits: add_request took it
~ for sequence in [*self.waiting, *self.running] => for sequence in self.running
the token 87 came after
- super().abort(request_id) => self.waiting = deque(each for each in self.waiting if each.request_id != request_id)
manners.streams_beside_steps
~ self.unread += self.compute() => self.compute()
has_unfinished() is False, and request
~ super().has_unfinished() or bool(self.unread) => super().has_unfinished()
the stream still gave
- self.streams[request_id].clear() => pass
A stream ends when its request is aborted
- self.streams[request_id].append(NewTokens(request_id, [], "abort")) => pass
the token 59 came after abort() had ended the request
- self.abort(request_id) => pass
Does `step` let go of what is kept before it knows
- computed = self.compute() ... unread, self.unread
+ unread, self.unread = self.unread, []
+ computed = self.compute()
"""


# 17.5: the break-in


def ids(*functions):
    return lambda: list(functions)


def of_tokens(engine):
    """Step until all have ended: id -> tokens."""
    tokens = {}
    while engine.has_unfinished():
        for event in engine.step():
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
    return tokens


def served(make_engine):
    engine = make_engine()
    engine.add_request("a", [5, 7], SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
    return of_tokens(engine)["a"]


def an_answer_has_tokens(make_engine):
    assert served(make_engine)


def an_answer_has_its_length(make_engine):
    assert len(served(make_engine)) == 3


def wants_four(make_engine):
    assert len(served(make_engine)) == 4, "four tokens"


def waits_for_ever(make_engine):
    engine = make_engine()
    while True:
        engine.step()


def takes_two_engines(make_engine, other):
    pass


def calls_what_isnt_there(make_engine):
    make_engine().generate([5])


def the_same_as_a_tuple():
    return tuple(break_in_tests())


class Situation:
    """A callable that isn't a function, and raises what isn't an assertion."""

    def __init__(self, test):
        self.test = test

    def __call__(self, make_engine):
        if self.test(make_engine) is not None:
            raise RuntimeError("not an assertion, and as good as one")


def objects_that_can_be_called():
    return [Situation(test) for test in break_in_tests()]


# 17.3: one test

ABORTS = """
But that is only what an engine says of itself
- while engine.has_unfinished() ... assert
+ engine.abort(other)
+ assert not engine.has_unfinished()
Does your test count those from before
- engine.step() => before = engine.step()
~ in engine.step(): => in before + engine.step():
`add_request` refuses what can't be served
~ max_tokens=4 => max_tokens=100
the test fails on an engine that serves one request at a time
~ max_num_seqs=1 => max_num_seqs=2
- engine.step() => assert len(engine.step()) == 2
is a tuple, which counts as true
~ assert event.request_id == other or not event.token_ids, f"{aborted} was aborted, and got a token" => assert (event.request_id == other or not event.token_ids, "a token")
Your test contains `yield`
> engine.abort(aborted) => yield
Your test is a coroutine
~ def test_an_abort => async def test_an_abort
Your `except Exception:` catches the AssertionError
- assert
+ try:
+     assert event.request_id == other or not event.token_ids
+ except Exception as error:
+     print(error)
It returned False, which nothing reads
- while engine.has_unfinished() ... assert
+ while engine.has_unfinished():
+     for event in engine.step():
+         if event.request_id == aborted and event.token_ids:
+             return False
Does your test count steps or events?
- while engine.has_unfinished() ... assert
+ steps = []
+ while engine.has_unfinished():
+     steps.append(engine.step())
+ assert not any(event.token_ids for events in steps for event in events if event.request_id == aborted)
+ assert len(steps) == (4 if aborted == "runs" else 3)
whatever `finish_reason` says
~ not event.token_ids, f => event.finish_reason or not event.token_ids, f
A step without tokens isn't the end
- while engine.has_unfinished() ... assert
+ for event in engine.step():
+     assert event.request_id == other or not event.token_ids
It has aborted no request
- engine.abort(aborted)
It has aborted no request
- engine.step() ... assert
read its `request_id` and `token_ids`
~ event.request_id == other => event.id == other
read its `request_id` and `token_ids`
~ for event in engine.step(): => for name, tokens, reason in engine.step():
Abort in every state
~ (("runs", "waits"), ("waits", "runs")) => (("runs", "waits"),)
Is a request running, with tokens still to come
~ (("runs", "waits"), ("waits", "runs")) => (("waits", "runs"),)
the test fails on an engine that says “abort” in its next step
~ event.request_id == other or not event.token_ids => event.request_id == other
and your test counts them: look at `request_id`
~ event.request_id == other or not event.token_ids => not event.token_ids
its assertion has no message
~ event.request_id == other or not event.token_ids, f"{aborted} was aborted, and got a token" => not event.token_ids
Your test demands a notice with “abort”
< while engine.has_unfinished() => assert any(event.finish_reason == "abort" for event in engine.step()), "no notice"
was added again after its abort
- engine.abort(aborted)
+ engine.abort(aborted)
+ engine.add_request(aborted, [5], Params(max_tokens=4, ignore_eos=True))
It has aborted no request
~ engine.abort(aborted) => engine.abort("other")
AssertionError: wrong
- engine.step() => raise AssertionError("wrong")
Step while `has_unfinished()` is True
~ while engine.has_unfinished() => while True
but no blocks
< engine.step() => engine.num_free_blocks()
Limits are given by name
~ make_engine(max_num_seqs=1) => make_engine(1)
"""


def two_requests(make_engine, aborted, **limits):
    """Both requests, one aborted after a step, and the events that follow."""
    engine = make_engine(**limits)
    for name in "ab":
        engine.add_request(name, [5, 7, 9], Params(max_tokens=4, ignore_eos=True))
    engine.step()
    engine.abort(aborted)
    events = []
    while engine.has_unfinished():
        events += engine.step()
    return events


def lists_of_tokens(make_engine):
    for aborted, other in ("ab", "ba"):
        events = two_requests(make_engine, aborted, max_num_seqs=1)
        owners = {event.request_id for event in events if event.token_ids}
        assert owners == {other}, owners


def in_three_states(make_engine):
    """Waiting, in its first step, and later; raises ValueError instead of asserting."""
    for steps in (0, 1, 3):
        for slots in (1, 2):
            engine = make_engine(max_num_seqs=slots)
            for name in ("x", "y"):
                engine.add_request(name, [3, 4], Params(max_tokens=6, ignore_eos=True))
            for _ in range(steps):
                engine.step()
            for name in ("y", "x"):
                engine.abort(name)
                got = [t for _ in range(3) for e in engine.step() if e.request_id == name for t in e.token_ids]
                if got:
                    raise ValueError(f"{name} got {got}")


def with_streams_of_events(make_engine):
    engine = make_engine(max_num_seqs=1)
    gone, after = set(), []
    for index in range(4):
        engine.add_request(str(index), [index + 1] * 3, Params(max_tokens=5, ignore_eos=True))
    while engine.has_unfinished():
        after += [event for event in engine.step() if event.request_id in gone and event.token_ids]
        for name in {"0", "2"} - gone:
            engine.abort(name)
            gone.add(name)
    assert after == []


def in_a_class(make_engine):
    class Case:
        def run(self, aborted):
            return [e for e in two_requests(make_engine, aborted, max_num_seqs=1) if e.request_id == aborted]

    assert sum(len(e.token_ids) for name in ("a", "b") for e in Case().run(name)) == 0


def looks_at_has_unfinished_too(make_engine):
    for steps in (0, 2):
        engine = make_engine(max_num_seqs=2)
        engine.add_request("a", [5, 7], Params(max_tokens=9, ignore_eos=True))
        for _ in range(steps):
            engine.step()
        engine.abort("a")
        assert not engine.has_unfinished(), "it goes on"
        assert not any(event.token_ids for _ in range(12) for event in engine.step())


WRONG = {
    "17.1": [
        NOTHING,
        Wrong("a file with a mistake", imports_a_broken_file, "line 2 of engine.py can't be read: expected ':'"),
        *changed(SlowEngine, ALONE, ALL=deque()),
    ],
    "17.2": [NOTHING, *changed(BatchingEngine, BATCHES)],
    "17.3": changed(one_test.test_an_abort, ABORTS, made=lambda test: test),
    "17.4": [NOTHING, *changed(SmallEngine, MANNERS)],
    "17.5": [
        Wrong("returns nothing", lambda: None, "returned NoneType; it must be a list of functions"),
        Wrong("returns no test", list, "returned no test"),
        Wrong("calls its tests", lambda: [None], "a list with NoneType in it"),
        Wrong("the naive test finds none", ids(an_answer_has_tokens), "12 of 12 mutants survive"),
        Wrong("one is found", ids(an_answer_has_its_length), "11 of 12 mutants survive: 2, 3, 4, 5, 6"),
        Wrong("the right engine fails it", ids(wants_four), "the right engine fails `wants_four`: four tokens"),
        Wrong("it never ends", ids(waits_for_ever), "doesn't end on the right engine: 600 steps"),
        Wrong("it takes two arguments", ids(takes_two_engines), "raised TypeError on the right engine"),
        Wrong("it calls what isn't there", ids(calls_what_isnt_there), "raised AttributeError on the right engine"),
        Wrong("forty-one tests", lambda: [an_answer_has_tokens] * 41, "there are 41 tests"),
    ],
}
RIGHT = {
    "17.1": [of(TakingTurns), of(SmallEngine)],
    "17.2": [of(PromptsFirst), of(OnlyTheNamesOfTheContract)],
    "17.3": [lists_of_tokens, in_three_states, with_streams_of_events, in_a_class, looks_at_has_unfinished_too],
    "17.4": [of(PromptsFirst), of(OnlyTheNamesOfTheContract)],
    "17.5": [the_same_as_a_tuple, objects_that_can_be_called],
}
if os.environ.get("LESSONS_NIGHTLY") == "1":  # each takes seconds, and other tests judge such engines by single items
    RIGHT["17.4"] += [the_course]
