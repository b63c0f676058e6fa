"""Steps an engine, keeps what it returns, and stops at the first thing that no engine may return."""

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from lessons_lib.conformance.contract import BLOCKS, STEPS, Limits, NewTokens, Params, features_of
from lessons_lib.conformance.oracle import a_model, a_prompt, expected
from lessons_lib.conformance.served import Broken, BrokenRule, Served, check_answer
from lessons_lib.conformance.texts import byte_tokenizer
from lessons_lib.conformance.watch import ModelWatch
from lessons_lib.models.tiny_models import VOCAB_SIZE

MAX_STEPS = 1500
MAX_IDLE_STEPS = 300  # in a row that return nothing; of an engine in a thread they take a fifth of a second each
MAX_IDLE_WAITS = 40
PATIENCE = 3.0  # seconds that an engine in a thread has for giving back what a request held
MakeEngine = Callable[[Any, Limits, Any], Any]


class NotOffered(Exception):
    """The engine doesn't have what this item judges."""


class Run:
    """One engine, its requests, and the rules that hold in every step.

    Args:
        make_engine: of the engine that is judged.
        family, vocab_size: of its model.
        limits: fields of `Limits`; its defaults apply to the others.

    Attributes:
        requests: id -> Served, of all requests.
        steps: how many there were.
        watch: ModelWatch of the engine's model.
        returned: what the last step returned, each with its tokens as they were then. An item that changes them clears
            this list.

    Raises:
        NotOffered: `make_engine` raised NotImplementedError.
    """

    def __init__(self, make_engine: MakeEngine, family: str = "qwen2", /, vocab_size: int = VOCAB_SIZE, **limits: int):
        self.make_engine, self.family, self.limits = make_engine, family, Limits(**limits)
        self.tokenizer: Any = byte_tokenizer(self.limits.eos_token_id)
        self.runs = [self]
        model = a_model(family, vocab_size)
        self.watch = ModelWatch(model)
        try:
            self.engine = make_engine(model, self.limits, self.tokenizer)
        except NotImplementedError as error:
            raise NotOffered(str(error)) from error
        self.features = features_of(self.engine)
        self.watch.passes.clear()  # the engine may have tried the model
        self.requests: dict[str, Served] = {}
        self.steps = 0
        self.returned: list[tuple[NewTokens, list[int]]] = []
        self.last_list: list[NewTokens] | None = None

    def another(self, family: str = "qwen2", /, **limits: int) -> "Run":
        """A further engine, which is closed with this one."""
        run = Run(self.make_engine, family, **limits)
        run.runs = self.runs
        self.runs.append(run)
        return run

    def close(self) -> None:
        for run in self.runs:
            if close := getattr(run.engine, "close", None):
                close()

    def needs(self, *features: str) -> None:
        """Raise NotOffered if the engine doesn't have one of these."""
        if missing := [name for name in features if name not in self.features]:
            raise NotOffered(f"the engine doesn't offer {' and '.join(missing)}")

    def add(self, prompt: list[int], max_tokens: int = 8, name: str | None = None, **params: Any) -> str:
        name = f"r{len(self.requests)}" if name is None else name
        served = Served(list(prompt), Params(max_tokens, **params), given=list(prompt))
        try:
            self.engine.add_request(name, served.given, served.params)
        except (ValueError, TypeError) as error:
            raise Broken(
                f"add_request refused a request that is right ({served}): {type(error).__name__}: {error}"
            ) from error
        self.requests[name] = served
        return name

    def add_all(self, sizes: Iterable[tuple[int, int]], **params: Any) -> list[str]:
        """Add a request for each (prompt length, max_tokens)."""
        return [self.add(a_prompt(length), max_tokens, **params) for length, max_tokens in sizes]

    def add_many(self, count: int, length: int, max_tokens: int) -> list[str]:
        """Add requests with different prompts of one length, which go on after the end token."""
        return [self.add(a_prompt(length, index), max_tokens, ignore_eos=True) for index in range(count)]

    def must_refuse(self, what: str, prompt: Any, params: dict[str, Any], name: str = "wrong") -> None:
        """`add_request` refuses this, with a ValueError or a TypeError, and nothing has changed."""
        before = self._state()
        try:
            self.engine.add_request(name, prompt, Params(**({"max_tokens": 4} | params)))
        except (ValueError, TypeError):
            pass
        except NotImplementedError:
            raise
        except Exception as error:
            raise Broken(
                f"{what}: add_request raised {type(error).__name__}: {error}. A request that makes no sense gets a "
                "ValueError that names the value, the limit and the remedy."
            ) from error
        else:
            raise Broken(f"{what}: add_request took it. It must raise ValueError.")
        for name, value in self._state().items():
            if value != before[name]:
                raise Broken(f"{what}: add_request refused it, and {name}() changed. A refusal changes nothing.")

    def _state(self) -> dict[str, object]:
        methods = ("has_unfinished", "num_free_blocks")
        return {name: getattr(self.engine, name)() for name in methods if hasattr(self.engine, name)}

    def always_refuses(self, what: str, prompt: Any, **params: Any) -> None:
        """An idle engine refuses it, and one whose requests then go on."""
        self.must_refuse(what, prompt, params)
        self.add(a_prompt(5), 6)
        self.step()
        self.must_refuse(what + ", while another runs", prompt, params)
        self.finish()
        self.add(a_prompt(3), 2, name="wrong")  # the id is free
        self.finish()

    def step(self) -> list[NewTokens]:
        """One step. What it returns is checked and kept."""
        self.steps += 1
        returned = self.engine.step()
        if not isinstance(returned, list):
            raise BrokenRule(f"step() returned {type(returned).__name__}; it must be a list of NewTokens, [] for none.")
        if self.returned and returned is self.last_list:
            raise BrokenRule(
                f"step {self.steps} returned the same list as step {self.steps - 1}, with other contents. A caller may "
                "still read the first: return a new list in each step."
            )
        self.last_list = returned
        for event, tokens in self.returned:
            if list(event.token_ids) != tokens:
                raise BrokenRule(
                    f"request {event.request_id!r} ({self.requests[event.request_id]}): step {self.steps - 1} returned "
                    f"its tokens {tokens}, and step {self.steps} has changed that list: it is {event.token_ids} now. "
                    "What a step returned stays as it is: make a new list for each NewTokens."
                )
        for event in returned:
            if not hasattr(event, "request_id"):
                raise BrokenRule(f"step() returned a list with a {type(event).__name__}; it must be of NewTokens.")
            if (name := event.request_id) not in self.requests:
                raise BrokenRule(f"step() returned tokens of request {name!r}, which was never added.")
            self.requests[name].take(event, self.steps, STEPS in self.features)
        self.returned = [(event, list(event.token_ids)) for event in returned]
        return returned

    def run_out(self, after_step: Callable[[], object] | None = None) -> None:
        """Step until nothing is unfinished."""
        began, idle = self.steps, 0
        most_idle = MAX_IDLE_STEPS if STEPS in self.features else MAX_IDLE_WAITS
        while self.engine.has_unfinished():
            idle = 0 if self.step() else idle + 1
            if after_step:
                after_step()
            if self.steps - began > MAX_STEPS or idle > most_idle:
                raise Broken(self._why_idle(self.steps - began, idle))
        for name, served in self.requests.items():
            if served.finish_reason is None and not served.is_aborted:
                raise BrokenRule(
                    f"has_unfinished() is False, and request {name!r} ({served}) has not ended: it got "
                    f"{len(served.tokens)} tokens and no finish_reason. {self._why_not_ended(name)}"
                )

    def _why_idle(self, steps: int, idle: int) -> str:
        """What is left after some steps, the last of which returned nothing."""
        left = {name: each for name, each in self.requests.items() if not (each.finish_reason or each.is_aborted)}
        if not left:
            return f"every request has ended, but has_unfinished() is still True, {idle} steps without tokens later."
        told = f"after {steps} steps has_unfinished() is still True, and these have not ended: {list(left)}. The last "
        if idle <= len(self.watch.passes):
            why = f"Each computed {self.watch.passes[-1]} tokens: is what a pass has computed kept for the next?"
        else:
            why = "No pass was seen in them: what do the requests wait for?"
            longest, most = max(len(each.prompt) for each in left.values()), self.limits.max_num_batched_tokens
            if longest > most:
                why += f" A prompt has {longest} tokens, and a step may compute {most}: so compute a part."
        return f"{told}{idle} steps returned nothing. {why}"

    def finish(self, when: str = "", after_step: Callable[[], object] | None = None) -> None:
        """Run out, check all answers and, if `when` says at which point, that all blocks are free."""
        self.run_out(after_step)
        self.check_answers()
        if when:
            self.check_all_free(when)

    def _why_not_ended(self, name: str) -> str:
        served = self.requests[name]
        params, length = served.params, len(served.tokens)
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else (self.limits.eos_token_id,))}
        if served.tokens and served.tokens[-1] in ends:
            why, reason = "Its last token ends it", "stop"
        elif length >= params.max_tokens:
            why, reason = "These are all", "length"
        elif length + len(served.prompt) >= self.limits.max_model_len:
            why, reason = f"The context of {self.limits.max_model_len} tokens is full", "length"
        else:
            with contextlib.suppress(Exception):
                if any(event.request_id == name for event in self.engine.step()):
                    return "One more step() served it: has_unfinished() must be True until it ends."
            return "A request was lost."
        return f"{why}: with the last one, or in a NewTokens after it, the reason {reason!r} must come."

    def first_step(self, name: str) -> int:
        """The step in which a request got its first token; Broken if it got none."""
        if (step := self.requests[name].first_step) is None:
            raise Broken(f"request {name!r} ({self.requests[name]}) has ended, and step() never returned its tokens.")
        return step

    def last_step(self, name: str) -> int:
        """The step in which a request got its last token; raises as `first_step`."""
        return self.requests[name].last_step or self.first_step(name)

    def abort(self, name: str) -> None:
        self.engine.abort(name)
        if not self.requests[name].finish_reason:
            self.requests[name].is_aborted = True

    def check_answers(self, but: tuple[str, ...] = (), may_fail: bool = False) -> None:
        """Every request that ended by itself has the tokens that `generate` gives its prompt alone."""
        for name, served in self.requests.items():
            if name in but or served.is_aborted or (may_fail and served.finish_reason == "error"):
                continue
            self.check_answer(name)

    def check_answer(self, name: str) -> None:
        """A request that has ended has the tokens that `generate` gives its prompt alone."""
        served = self.requests[name]
        try:
            check_answer(self.family, name, served, len(self.requests), self.limits.eos_token_id)
        except Broken as error:
            if "The first token differs" in str(error) and len(self.requests) < 5:
                for other, each in self.requests.items():
                    if each.prompt != served.prompt and served.tokens[:1] == expected(self.family, each.prompt, 1):
                        raise Broken(f"{error} It is that of request {other!r}: which row is whose?") from error
            raise

    def check_budget(self) -> None:
        """No pass of the model has computed more tokens than a step may."""
        most, budget = max(self.watch.passes, default=0), self.limits.max_num_batched_tokens
        if most > budget:
            raise Broken(f"max_num_batched_tokens is {budget}, and a pass of the model computed {most} tokens.")

    def free_blocks(self) -> int:
        self.needs(BLOCKS)
        free: int = self.engine.num_free_blocks()
        if not 0 <= free <= self.limits.num_blocks:
            raise Broken(f"num_free_blocks() is {free}, of {self.limits.num_blocks} blocks in all.")
        return free

    def check_all_free(self, when: str) -> None:
        """With no request left, every block is free; nothing to check for engines without blocks."""
        if BLOCKS not in self.features:
            return
        deadline = time.monotonic() + (0 if STEPS in self.features else PATIENCE)
        while (free := self.free_blocks()) != self.limits.num_blocks and time.monotonic() < deadline:
            time.sleep(0.01)
        if free != self.limits.num_blocks:
            raise Broken(
                f"{when}: no request is left, and only {free} of {self.limits.num_blocks} blocks are free. If each "
                "request loses some, the engine soon can't serve any more."
            )
