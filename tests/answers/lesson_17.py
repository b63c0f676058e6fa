"""Answers to the exercise of lesson 17: engines with one mistake each, and engines that are built in another way."""

import linecache
import os
import warnings
from collections import deque
from dataclasses import replace

import torch
from fake_peers import FakeVllm
from transformers import DynamicCache

from answers import Wrong
from lessons_lib.conformance.adapters import course
from examples.engines.vllm import VllmEngine
from lessons_lib.conformance.break_in.examples import break_in_tests
from lessons_lib.conformance.contract import NewTokens, Params
from lessons_lib.conformance.examples.small_engine import Sequence, SmallEngine
from lessons_lib.engine.sampling_params import SamplingParams


def of(engine_class):
    def make_engine(model, limits, tokenizer):
        return engine_class(model, limits)

    return make_engine


class Empty(SmallEngine):
    def add_request(self, request_id, prompt_ids, params):
        pass


class LengthForEverything(SmallEngine):
    def finish_reason(self, sequence):
        return super().finish_reason(sequence) and "length"


class IgnoresTheEndToken(SmallEngine):
    def finish_reason(self, sequence):
        return "length" if len(sequence.tokens) - sequence.num_prompt == sequence.params.max_tokens else None


class OneTokenTooMany(SmallEngine):
    def finish_reason(self, sequence):
        if (
            len(sequence.tokens) - sequence.num_prompt <= sequence.params.max_tokens
            and not super().finish_reason(sequence) == "stop"
        ):
            return None
        return super().finish_reason(sequence) or "length"


class NoOwners(SmallEngine):
    """Every token sees all keys at its position or before, of any sequence."""

    def forward(self, chosen):
        repeat = torch.repeat_interleave
        torch.repeat_interleave = lambda input, repeats: torch.zeros_like(repeat(input, repeats))
        try:
            return super().forward(chosen)
        finally:
            torch.repeat_interleave = repeat


class StaticBatches(SmallEngine):
    def compute(self):
        waiting = self.waiting
        if self.running:
            self.waiting = type(waiting)()
        returned = super().compute()
        self.waiting = waiting
        return returned


class NewestFirst(SmallEngine):
    def add_request(self, *arguments):
        super().add_request(*arguments)
        self.waiting.appendleft(self.waiting.pop())


class TakesAnyToken(SmallEngine):
    def add_request(self, request_id, prompt_ids, params):
        super().add_request(request_id, [abs(token) % 97 for token in prompt_ids], params)


class AppendsBeforeItChecks(SmallEngine):
    def add_request(self, request_id, prompt_ids, params):
        try:
            super().add_request(request_id, prompt_ids, params)
        except ValueError:
            self.waiting.append(Sequence(request_id, list(prompt_ids), params, len(prompt_ids)))
            raise


class AbortsTheWaitingOnly(SmallEngine):
    def abort(self, request_id):
        self.waiting = type(self.waiting)(each for each in self.waiting if each.request_id != request_id)


class LosesWhatOthersGot(SmallEngine):
    def stream(self, *arguments):
        for token in super().stream(*arguments):
            self.unread.clear()
            yield token


def no_engine(model, limits, tokenizer):
    return None


WRONG = {
    "17.5": [
        Wrong("returns nothing", no_engine, "returned NoneType, which has no `add_request`"),
        Wrong("a request isn't kept", of(Empty), "answers.one_request"),
        Wrong("the reason is always length", of(LengthForEverything), "answers.end_token"),
        Wrong("the end token is ignored", of(IgnoresTheEndToken), "the answer should have ended there"),
        Wrong("one token too many", of(OneTokenTooMany), "max_tokens is 8"),
        Wrong("sequences see each other", of(NoOwners), "batches.ragged"),
        Wrong("static batches", of(StaticBatches), "static batching"),
        Wrong("the newest request first", of(NewestFirst), "batches.first_come"),
        Wrong("appends before it checks", of(AppendsBeforeItChecks), "a request that was refused is still there"),
    ]
}
LATE = [
    Wrong("takes any token", of(TakesAnyToken), "manners.unknown_token"),
    Wrong("aborts only what waits", of(AbortsTheWaitingOnly), "came after abort() had ended the request"),
    Wrong("a stream drops the others' tokens", of(LosesWhatOthersGot), "manners.streams_beside_steps"),
]


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


def the_course(model, limits, tokenizer):
    return course.make_engine(model, limits, tokenizer)


def a_fake_vllm(model, limits, tokenizer):
    return VllmEngine(FakeVllm(model, limits, tokenizer), SamplingParams)


class OnlyTheNamesOfTheContract:
    """Keeps an engine instead of being one."""

    def __init__(self, model, limits):
        engine = SmallEngine(model, limits)
        self.add_request, self.step, self.abort = engine.add_request, engine.step, engine.abort
        self.has_unfinished, self.stream = engine.has_unfinished, engine.stream


RIGHT = {"17.5": [of(PromptsFirst), of(OnlyTheNamesOfTheContract)]}

# Each of these takes seconds, and other tests judge such engines by single items.
if os.environ.get("LESSONS_NIGHTLY") == "1":
    WRONG["17.5"] += LATE
    RIGHT["17.5"] += [the_course, a_fake_vllm]


# 17.1: the first level


class Alone:
    """One request at a time, without a cache; `mistake` is the one that it makes."""

    mistake = ""

    def __init__(self, model, limits):
        self.model, self.limits, self.queue = model, limits, deque()

    def add_request(self, request_id, prompt_ids, params):
        if len(prompt_ids) >= self.limits.max_model_len and self.mistake != "no room":
            raise ValueError("no room for an answer")
        if self.mistake == "appends first":
            self.queue.append((request_id, list(prompt_ids), [], params))
        if len(prompt_ids) + params.max_tokens > self.limits.max_model_len - (self.mistake == "one too few"):
            if self.mistake in ("appends first", "one too few"):
                raise ValueError("too long")
        if self.mistake == "the caller's list":
            self.queue.append((request_id, [], prompt_ids, params))
        elif self.mistake != "appends first":
            self.queue.append((request_id, list(prompt_ids), [], params))

    @torch.inference_mode()
    def step(self):
        if not self.queue and self.mistake != "none to step":
            return []
        request_id, prompt, answer, params = self.queue[0]
        logits = self.model(input_ids=torch.tensor([prompt + answer])).logits[0]
        token = int(logits[0 if self.mistake == "first position" else -1].argmax())
        answer.append(token)
        reason = self.reason(token, prompt, answer, params)
        if reason and self.mistake != "stays":
            self.queue.popleft()
        if self.mistake == "one event":
            return NewTokens(request_id, [token], reason)
        tokens = answer if self.mistake == "all again" else [] if self.mistake == "hidden" and reason else [token]
        return [NewTokens(request_id, list(tokens), reason)]

    def reason(self, token, prompt, answer, params):
        is_stopped = token in params.stop_token_ids and self.mistake != "no stop tokens"
        seen = [*prompt, *answer] if self.mistake == "end token anywhere" else [token]
        is_ended = self.limits.eos_token_id in seen and not params.ignore_eos
        if self.mistake == "ignores both":
            is_stopped = is_stopped and not params.ignore_eos
        if self.mistake == "the end token never stops":
            is_stopped = is_stopped and (token != self.limits.eos_token_id or not params.ignore_eos)
        if self.mistake == "ends at the end token":
            is_ended = token == self.limits.eos_token_id
        if self.mistake == "the caller's list":
            self.grown = getattr(self, "grown", 0) + 1
            if self.grown == params.max_tokens:
                del self.grown
                return "length"
            return None
        counted = len(answer) + len(prompt) * (self.mistake == "counts the prompt")
        is_full = counted >= params.max_tokens
        if self.mistake != "past the context":
            is_full = is_full or len(prompt) + len(answer) == self.limits.max_model_len
        if self.mistake == "length at the context first" and len(prompt) + len(answer) == self.limits.max_model_len:
            return "length"
        if self.mistake == "length first" and is_full:
            return "length"
        if self.mistake == "eos as a reason" and is_ended:
            return "eos"
        return "stop" if is_stopped or is_ended else "length" if is_full else None

    def has_unfinished(self):
        return bool(self.queue)


def alone(mistake):
    return of(type("Alone", (Alone,), {"mistake": mistake}))


class AllAtOnce(Alone):
    """The whole answer in one step."""

    def step(self):
        tokens, left = [], len(self.queue)
        while len(self.queue) == left and left:
            (event,) = super().step()
            tokens += event.token_ids
        return [NewTokens(event.request_id, tokens, event.finish_reason)] if tokens else []


class OnePlace(Alone):
    """A new request takes the place of the one before."""

    def add_request(self, *arguments):
        self.queue.clear()
        super().add_request(*arguments)


class ComputesAtTheDoor(Alone):
    def add_request(self, request_id, prompt_ids, params):
        super().add_request(request_id, prompt_ids, params)
        self.model(input_ids=torch.tensor([prompt_ids]))


class BareTokens(Alone):
    def step(self):
        return [NewTokens(each.request_id, each.token_ids[0], each.finish_reason) for each in super().step()]


class FirstStopToken(Alone):
    def reason(self, token, prompt, answer, params):
        return super().reason(token, prompt, answer, replace(params, stop_token_ids=params.stop_token_ids[:1]))


class OneList(Alone):
    """The same list in every NewTokens."""

    def __init__(self, model, limits):
        super().__init__(model, limits)
        self.ids = []

    def step(self):
        events = super().step()
        for each in events:
            self.ids[:] = each.token_ids
        return [replace(each, token_ids=self.ids) for each in events]


class QueueOfTheClass(Alone):
    shared = deque()

    def __init__(self, model, limits):
        super().__init__(model, limits)
        self.queue = self.shared


class NoReason(Alone):
    def step(self):
        return [replace(each, finish_reason=None) for each in super().step()]


class NoReasonAtTheContext(Alone):
    def step(self):
        events = super().step()
        return [replace(each, finish_reason=each.finish_reason and self.told) for each in events]

    def reason(self, token, prompt, answer, params):
        reason = super().reason(token, prompt, answer, params)
        self.told = reason if reason == "stop" or len(answer) == params.max_tokens else None
        return reason


class NoReasonAtTheEndToken(Alone):
    def step(self):
        events = super().step()
        return [replace(each, finish_reason=None) if each.finish_reason == "stop" else each for each in events]


class UnfinishedWhileItRuns(Alone):
    runs = False

    def step(self):
        events = super().step()
        self.runs = any(each.finish_reason is None for each in events)
        return events

    def has_unfinished(self):
        return self.runs


class AlwaysUnfinished(Alone):
    def has_unfinished(self):
        return True


class WithACache:
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


def imports_a_broken_file(model, limits, tokenizer):
    return compile("x = 1\ndef step(self)\n", "my_serving/engine.py", "exec")


class NeverAgain(Alone):
    def __init__(self, model, limits):
        super().__init__(model, limits)
        self.ids = set()

    def add_request(self, request_id, prompt_ids, params):
        if request_id in self.ids:
            raise ValueError("this id is in use")
        super().add_request(request_id, prompt_ids, params)
        self.ids.add(request_id)


WRONG["17.1"] = [
    Wrong("an id never comes again", of(NeverAgain), "an id can't be used again. add_request refused a request"),
    Wrong("a file with a mistake", imports_a_broken_file, "line 2 of engine.py can't be read: expected ':'"),
    Wrong("returns nothing", no_engine, "returned NoneType, which has no `add_request`"),
    Wrong("the first position", alone("first position"), "The first 2 tokens are the same; then they differ"),
    Wrong(
        "length before stop where the context ends",
        alone("length at the context first"),
        "a stop token there says `stop`",
    ),
    Wrong("a prompt that fills the context", alone("no room"), "a prompt of 64 tokens, with a context of 64"),
    Wrong("a step without requests", alone("none to step"), "Without requests, step() returns []"),
    Wrong("max_tokens counts the prompt", alone("counts the prompt"), "Does max_tokens count the prompt"),
    Wrong("appends to the caller's list", alone("the caller's list"), "it has 15 tokens now"),
    Wrong("all tokens again", alone("all again"), "Are these the same tokens again?"),
    Wrong("a token, no list", of(BareTokens), "token_ids is 59; it must be a list"),
    Wrong("the whole answer at once", of(AllAtOnce), "a step made 3 passes of the model"),
    Wrong("one place for all", of(OnePlace), "A request was lost"),
    Wrong("the first stop token only", of(FirstStopToken), "the answer should have ended there"),
    Wrong("one list for all", of(OneList), "step 2 returned its tokens [59], and step 3 has changed that list"),
    Wrong("one queue for all engines", of(QueueOfTheClass), "has_unfinished() of the second is True"),
    Wrong("always unfinished", of(AlwaysUnfinished), "every request has ended, but has_unfinished() is still True"),
    Wrong("no reason", of(NoReason), "it got 8 tokens and no finish_reason. These are all"),
    Wrong("no reason at the context's end", of(NoReasonAtTheContext), "The context of 64 tokens is full"),
    Wrong("no reason at the end token", of(NoReasonAtTheEndToken), "Its last token ends it"),
    Wrong("unfinished only while it runs", of(UnfinishedWhileItRuns), "One more step() served it"),
    Wrong("computes in add_request", of(ComputesAtTheDoor), "`add_request` runs the model: 15 tokens are"),
    Wrong("an event, no list", alone("one event"), "it must be a list of NewTokens"),
    Wrong("never leaves", alone("stays"), "A request ends once"),
    Wrong(
        "ignore_eos is ignored",
        alone("ends at the end token"),
        "is 12, the end token, and the request has `ignore_eos`",
    ),
    Wrong("the end token isn't told", alone("hidden"), "tokens are right, and 1 missing"),
    Wrong("another reason", alone("eos as a reason"), "finish_reason is 'eos'"),
    Wrong("length before stop", alone("length first"), "The contract says it: read `NewTokens` in"),
    Wrong("an end token in the prompt", alone("end token anywhere"), "answers.end_token_in_the_prompt"),
    Wrong(
        "no stop tokens",
        alone("no stop tokens"),
        "request 'r0' (prompt of 9 tokens, max_tokens 8, stop_token_ids [25], qwen2",
    ),
    Wrong("ignore_eos turns stop tokens off", alone("ignores both"), "stop_token_ids [25], ignore_eos"),
    Wrong(
        "ignore_eos ignores a stop token",
        alone("the end token never stops"),
        "12 is the end token, and here also a stop token of the request",
    ),
    Wrong("one token too few fits", alone("one too few"), "answers.full_context"),
    Wrong("past the context", alone("past the context"), "the engine gave 64 tokens"),
    Wrong("appends before it checks", alone("appends first"), "a request that was refused is still there"),
]
RIGHT["17.1"] = [alone("none"), of(WithACache), of(SmallEngine)]


# 17.3: the cache


class Cached(Alone):
    """A cache by request id, dropped where a request ends; `flaw` is the mistake that it makes."""

    flaw = ""

    def __init__(self, model, limits):
        super().__init__(model, limits)
        self.caches = {}

    @torch.inference_mode()
    def step(self):
        if not self.queue and self.flaw != "none to step":
            return []
        request_id, prompt, answer, params = self.queue[0]
        key = None if self.flaw == "one cache" else request_id
        cache = self.caches.setdefault(key, DynamicCache(config=self.model.config))
        new = answer[-1:] or prompt
        if self.flaw == "the token before":
            new = [*prompt, *answer][-2:-1] if answer else prompt
        if self.flaw == "the last two":
            new = answer[-2:] or prompt
        logits = self.model(
            input_ids=torch.tensor([new]), past_key_values=None if self.flaw == "not given" else cache
        ).logits
        answer.append(token := int(logits[0, -1].argmax()))
        reason = self.reason(token, prompt, answer, params)
        if reason:
            self.queue.popleft()
            if self.flaw != "kept by id":
                self.caches.pop(key if self.flaw != "one cache" else "", None)
        return [NewTokens(request_id, [token], reason)]


class DroppedAtTheEnd(Cached):
    """One cache, which the end of a request empties, but no abort."""

    flaw = "one cache"

    def step(self):
        events = super().step()
        if any(each.finish_reason for each in events):
            self.caches.clear()
        return events

    def abort(self, request_id):
        self.queue = deque(each for each in self.queue if each[0] != request_id)


class LooksAhead(Cached):
    """Computes the last token of an answer, too, which nothing needs."""

    @torch.inference_mode()
    def step(self):
        for each in (events := super().step()):
            if each.finish_reason:
                self.model(input_ids=torch.tensor([each.token_ids]))
        return events


def cached(flaw):
    return of(type("Cached", (Cached,), {"flaw": flaw}))


class CachedWithAbort(Cached):
    def abort(self, request_id):
        self.queue = deque(each for each in self.queue if each[0] != request_id)
        self.caches.pop(request_id, None)


class KeptAfterAnAbort(Cached):
    """A cache by request id, dropped where a request ends by itself; an abort leaves it."""

    def abort(self, request_id):
        self.queue = deque(each for each in self.queue if each[0] != request_id)


class CachedWithNotices(CachedWithAbort):
    """Says "abort" in the next step."""

    notices = ()

    def abort(self, request_id):
        if any(each[0] == request_id for each in self.queue):
            self.notices = (*self.notices, NewTokens(request_id, [], "abort"))
        super().abort(request_id)

    def step(self):
        notices, self.notices = list(self.notices), ()
        return notices + super().step()


class ComputesMostOfThePromptFirst(Alone):
    """In a step of its own, which returns nothing."""

    cache = None

    @torch.inference_mode()
    def step(self):
        if not self.queue:
            return []
        request_id, prompt, answer, params = self.queue[0]
        if self.cache is None and len(prompt) > 1:
            self.cache = self.model(input_ids=torch.tensor([prompt[:-1]]), use_cache=True).past_key_values
            return []
        new = answer[-1:] or prompt[-1:]
        logits = self.model(input_ids=torch.tensor([new]), past_key_values=self.cache or DynamicCache()).logits
        answer.append(token := int(logits[0, -1].argmax()))
        if reason := self.reason(token, prompt, answer, params):
            self.queue.popleft()
            self.cache = None
        return [NewTokens(request_id, [token], reason)]


class ComputesInAddRequest(CachedWithAbort):
    @torch.inference_mode()
    def add_request(self, request_id, prompt_ids, params):
        super().add_request(request_id, prompt_ids, params)
        self.model(input_ids=torch.tensor([list(prompt_ids)]))


class NotesAbortedIds(CachedWithAbort):
    """A set of ids that is never emptied: a new request with such an id is dropped, too."""

    def __init__(self, model, limits):
        super().__init__(model, limits)
        self.aborted = set()

    def abort(self, request_id):
        self.aborted.add(request_id)
        super().abort(request_id)

    def step(self):
        for request_id in self.aborted:
            super().abort(request_id)
        return super().step()


class KeepsAbortedIds(CachedWithAbort):
    """An id that was aborted stays in use."""

    aborted = frozenset()

    def abort(self, request_id):
        self.aborted |= {request_id}
        super().abort(request_id)

    def add_request(self, request_id, prompt_ids, params):
        if request_id in self.aborted:
            raise ValueError(f"{request_id!r} is in use")
        super().add_request(request_id, prompt_ids, params)


class DropsAllAtAnAbort(Cached):
    def abort(self, request_id):
        self.queue = deque(each for each in self.queue if each[0] != request_id)
        self.caches.clear()


WRONG["17.3"] = [
    Wrong("kept by id after an abort", of(KeptAfterAnAbort), "a request with the id of one that was aborted"),
    Wrong("a first pass without a token", of(ComputesMostOfThePromptFirst), "computed 4 tokens, and no token came of"),
    Wrong("computes in add_request", of(ComputesInAddRequest), "`add_request` runs the model: 5 tokens"),
    Wrong("notes aborted ids for ever", of(NotesAbortedIds), "It got no token, so the cache isn't the reason"),
    Wrong("aborted ids stay in use", of(KeepsAbortedIds), "Why does it refuse? Every request before"),
    Wrong(
        "an abort drops the cache of another",
        of(DropsAllAtAnAbort),
        "a request that runs while another is added and aborted",
    ),
    Wrong("returns nothing", no_engine, "returned NoneType, which has no `add_request`"),
    Wrong("no cache", alone("none"), "step 2 of a request computed 6 tokens; 1 would do"),
    Wrong("the last two tokens", cached("the last two"), "step 3 of a request computed 2 tokens; 1 would do"),
    Wrong("the token before the newest", cached("the token before"), "Which token does the newest pass continue?"),
    Wrong("the newest token without its cache", cached("not given"), "does it get the cache of all tokens before?"),
    Wrong("one cache for all", cached("one cache"), "With which one does this one begin?"),
    Wrong("a cache that is never dropped", cached("kept by id"), "Its id may come again"),
    Wrong("dropped at the end only", of(DroppedAtTheEnd), "What becomes of it when the request is aborted?"),
    Wrong("computes the last token", of(LooksAhead), "step 4 of a request computed 2 tokens; 1 would do"),
    Wrong("a step without requests", cached("none to step"), "Callers may step an engine that has nothing to do"),
]
RIGHT["17.3"] = [of(CachedWithNotices), of(Cached), of(CachedWithAbort), of(WithACache), of(SmallEngine)]


# 17.2: the break-in


def ids(*functions):
    return lambda: list(functions)


def of_tokens(engine):
    """Step until all have ended: id -> tokens."""
    tokens = {}
    while engine.has_unfinished():
        for event in engine.step():
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
    return tokens


def an_answer_has_tokens(make_engine):
    engine = make_engine()
    engine.add_request("a", [5, 7], SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
    assert of_tokens(engine)["a"]


def an_answer_has_its_length(make_engine):
    engine = make_engine()
    engine.add_request("a", [5, 7], SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
    assert len(of_tokens(engine)["a"]) == 3


def wants_four(make_engine):
    engine = make_engine()
    engine.add_request("a", [5, 7], SamplingParams(max_tokens=3, temperature=0, ignore_eos=True))
    assert len(of_tokens(engine)["a"]) == 4, "four tokens"


def waits_for_ever(make_engine):
    engine = make_engine()
    while True:
        engine.step()


def takes_two_engines(make_engine, other):
    pass


def calls_what_isnt_there(make_engine):
    make_engine().generate([5])


WRONG["17.2"] = [
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
]


def the_same_as_a_tuple():
    return tuple(break_in_tests())


class Situations:
    """Callables that aren't functions, one for each test of the reference."""

    def __init__(self, test):
        self.test = test

    def __call__(self, make_engine):
        if self.test(make_engine) is not None:
            raise RuntimeError("not an assertion, and as good as one")


def objects_that_can_be_called():
    return [Situations(test) for test in break_in_tests()]


RIGHT["17.2"] = [the_same_as_a_tuple, objects_that_can_be_called]


# 17.4 one test


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


def aborts_what_runs_only(make_engine):
    assert not any(event.token_ids for event in two_requests(make_engine, "a") if event.request_id == "a")


def aborts_what_waits_only(make_engine):
    events = two_requests(make_engine, "b", max_num_seqs=1)
    assert not any(event.token_ids for event in events if event.request_id == "b")


A_TUPLE = """
def asserts_a_tuple(make_engine):
    for aborted in "ab":
        events = two_requests(make_engine, aborted, max_num_seqs=1)
        late = sum(len(event.token_ids) for event in events if event.request_id == aborted)
        assert (late == 0, f"{late} tokens after the abort")
"""


def as_a_cell(source, name):
    """The function of this name in a text, compiled as a notebook does, without Python's own warning."""
    file = f"<cell of {name}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    cell = dict(globals())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(source, file, "exec"), cell)
    return cell[name]


def yields(make_engine):
    for aborted in "ab":
        for event in two_requests(make_engine, aborted, max_num_seqs=1):
            yield event
            assert event.request_id != aborted or not event.token_ids


async def awaits(make_engine):
    aborts_what_runs_only(make_engine)
    aborts_what_waits_only(make_engine)


def catches_its_own(make_engine):
    try:
        for aborted in "ab":
            events = two_requests(make_engine, aborted, max_num_seqs=1)
            assert not any(event.token_ids for event in events if event.request_id == aborted)
    except Exception as error:
        print(error)


def allows_no_event(make_engine):
    for aborted in "ab":
        events = two_requests(make_engine, aborted, max_num_seqs=1)
        assert all(event.request_id != aborted for event in events)


def counts_tokens_of_others(make_engine):
    for aborted in "ba":
        assert not any(event.token_ids for event in two_requests(make_engine, aborted, max_num_seqs=1))


def wants_a_notice(make_engine):
    for aborted in "ab":
        events = two_requests(make_engine, aborted, max_num_seqs=1)
        assert [e.finish_reason for e in events if e.request_id == aborted] == ["abort"], "no notice"


def always_fails(make_engine):
    raise AssertionError("wrong")


def never_ends(make_engine):
    engine = make_engine()
    engine.add_request("a", [5], Params(max_tokens=3, ignore_eos=True))
    engine.abort("a")
    while not engine.step():
        pass


def counts_blocks(make_engine):
    engine = make_engine()
    free = engine.num_free_blocks()
    engine.add_request("a", [5], Params(max_tokens=3, ignore_eos=True))
    engine.step()
    engine.abort("a")
    assert engine.num_free_blocks() == free


def without_limits(make_engine):
    engine = make_engine(1)
    engine.add_request("a", [5], Params(max_tokens=3))


def wants_other_tokens(make_engine):
    events = two_requests(make_engine, "a", max_num_seqs=1)
    assert sum(len(event.token_ids) for event in events) == 3, "3 tokens"


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


def counts_steps(make_engine):
    """The other request wants 4 tokens; an engine may take more than 4 steps."""
    for aborted, num_steps in (("a", 4), ("b", 3)):
        engine = make_engine(max_num_seqs=1)
        for name in "ab":
            engine.add_request(name, [5, 7, 9], Params(max_tokens=4, ignore_eos=True))
        engine.step()
        engine.abort(aborted)
        steps = []
        while engine.has_unfinished():
            steps.append(engine.step())
        assert not any(event.token_ids for events in steps for event in events if event.request_id == aborted)
        assert len(steps) == num_steps


def wants_both_to_run(make_engine):
    for aborted, slots in (("a", 1), ("b", 1), ("b", 2)):
        engine = make_engine(max_num_seqs=slots)
        for name in "ab":
            engine.add_request(name, [5, 7, 9], Params(max_tokens=4, ignore_eos=True))
        assert len(engine.step()) == slots, "both run"
        engine.abort(aborted)
        while engine.has_unfinished():
            assert not any(event.token_ids for event in engine.step() if event.request_id == aborted)


def returns_its_verdict(make_engine):
    events = {aborted: two_requests(make_engine, aborted, max_num_seqs=1) for aborted in "ab"}
    return not any(event.token_ids for name in "ab" for event in events[name] if event.request_id == name)


def says_nothing(make_engine):
    for aborted in "ab":
        assert not [each for each in two_requests(make_engine, aborted) if each.request_id != aborted]


def engine_after_an_abort(make_engine, steps):
    engine = make_engine(max_num_seqs=2)
    engine.add_request("a", [5, 7], Params(max_tokens=9, ignore_eos=True))
    for _ in range(steps):
        engine.step()
    engine.abort("a")
    return engine


def looks_at_has_unfinished_only(make_engine):
    for steps in (0, 2):
        assert not engine_after_an_abort(make_engine, steps).has_unfinished()


def asks_for_more_than_the_context(make_engine):
    make_engine().add_request("a", [3, 5, 7], Params(max_tokens=100, ignore_eos=True))


def counts_tokens_from_before(make_engine):
    engine = make_engine(max_num_seqs=2)
    engine.add_request("a", [5, 7], Params(max_tokens=9, ignore_eos=True))
    events = engine.step() + engine.step()
    engine.abort("a")
    for _ in range(9):
        events += engine.step()
    assert not any(event.token_ids for event in events)


def looks_at_has_unfinished_too(make_engine):
    for steps in (0, 2):
        engine = engine_after_an_abort(make_engine, steps)
        assert not engine.has_unfinished(), "it goes on"
        assert not any(event.token_ids for _ in range(12) for event in engine.step())


WRONG["17.4"] = [
    Wrong(
        "looks at has_unfinished only", looks_at_has_unfinished_only, "But that is only what an engine says of itself"
    ),
    Wrong("counts tokens from before", counts_tokens_from_before, "Does your test count those from before"),
    Wrong("asks for too much", asks_for_more_than_the_context, "`add_request` refuses what can't be served"),
    Wrong("wants both to run", wants_both_to_run, "the test fails on an engine that serves one request at a time"),
    Wrong("asserts a tuple", as_a_cell(A_TUPLE, "asserts_a_tuple"), "is a tuple, which counts as true"),
    Wrong("yields", yields, "Your test contains `yield`"),
    Wrong("a coroutine", awaits, "Your test is a coroutine"),
    Wrong("catches its own", catches_its_own, "Your `except Exception:` catches the AssertionError"),
    Wrong("returns its verdict", returns_its_verdict, "It returned False, which nothing reads"),
    Wrong("an assertion without words", says_nothing, "of your cell: `assert not [each for each in"),
    Wrong("counts steps", counts_steps, "Does your test count steps or events?"),
    Wrong("aborts what runs only", aborts_what_runs_only, "Abort in every state"),
    Wrong("aborts what waits only", aborts_what_waits_only, "Is a request running, with tokens still to come"),
    Wrong("allows no event", allows_no_event, "the test fails on an engine that says “abort” in its next step"),
    Wrong("counts tokens of others", counts_tokens_of_others, "Those that came are of 'a', and your test counts them"),
    Wrong("wants a notice", wants_a_notice, "no notice"),
    Wrong("always fails", always_fails, "AssertionError: wrong"),
    Wrong("never ends", never_ends, "Step while `has_unfinished()` is True"),
    Wrong("counts blocks", counts_blocks, "but no blocks"),
    Wrong("without limits", without_limits, "Limits are given by name"),
    Wrong("wants other tokens", wants_other_tokens, "3 tokens"),
]
RIGHT["17.4"] = [
    lists_of_tokens, in_three_states, with_streams_of_events, in_a_class, looks_at_has_unfinished_too,
]  # fmt: skip
