"""A dashboard for a running engine: its metrics, its last steps, and the growing answers."""

import asyncio
import threading
import time
from collections.abc import Callable
from html import escape

import ipywidgets as widgets

from lessons_lib.engine.detokenizer import HALF_A_CHARACTER
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.engine.outputs import RequestOutput
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.recording.engine_lanes import LaneRecorder, pool_use
from lessons_lib.viz.controls import button, line_of, name_parts, said
from lessons_lib.viz.dashboard.picture import draw_dashboard
from lessons_lib.viz.drawing.palette import SOFT_INK, color_of, text_on
from lessons_lib.viz.drawing.picture import Picture, live_html, still_bundle

_WIDE = "72px"  # of a button
_REDRAW_SECONDS = 0.125
_MOST_TEXTS = 8
_CROWD = 8  # requests that come at once, if asked for
_MOST_CHARACTERS = 400  # of an answer; its end is the new part


class Dashboard(widgets.VBox):
    """Shows an engine and drives it: step by step, or continuously without blocking the page. "trouble" makes some.

    It also follows steps made elsewhere, such as by `engine.generate` in another cell.

    engine  an LLMEngine
    params  SamplingParams of the requests that are added here

    `outputs` are the requests that ended in steps made here. Keyboard: Tab from one control to the next, Enter for a
    button. Where no kernel runs (GitHub, an exported page), the last picture is shown.
    """

    def __init__(self, engine, params: SamplingParams | None = None):
        self.engine = engine
        self.params = params or SamplingParams(max_tokens=60, temperature=0.8)
        self.outputs: list[RequestOutput] = []
        self.is_running = False
        self._task: asyncio.Task | None = None
        # Jupyter may deliver one click to the kernel's main thread and the next one to another thread.
        self._one_at_a_time = threading.RLock()
        self._drawn_at = float("-inf")
        self.step_button = button("step", "run one step of the engine", _WIDE)
        self.run_button = button("run", "run steps until no request is left, or pause", _WIDE)
        self.prompt = widgets.Text(
            value="The old dog", description="story", style={"description_width": "initial"},
            layout=widgets.Layout(flex="1 1 200px", margin="0 0 0 16px"),
            # else the text and a button click would be sent at the same time, and might arrive in the wrong order
            continuous_update=True,
        )  # fmt: skip
        self.add_button = button("add", "add a request that continues this story", _WIDE)
        self.trouble = widgets.Dropdown(
            options=list(_TROUBLES), description="trouble", style={"description_width": "initial"},
            layout=widgets.Layout(width="260px"), tooltip="what the next button does to the engine",
        )  # fmt: skip
        self.trouble_button = button("make it", "make the trouble that is chosen", _WIDE)
        self.message = widgets.HTML(layout=widgets.Layout(min_height="24px", max_width="900px"))
        self.picture = widgets.HTML(layout=widgets.Layout(width="auto", margin="0"))
        self.texts = widgets.HTML(layout=widgets.Layout(max_width="900px"))
        names = ("step", "run", "prompt", "add", "trouble", "make_trouble")
        controls = (self.step_button, self.run_button, self.prompt, self.add_button, self.trouble, self.trouble_button)
        shown = {"message": self.message, "picture": self.picture, "texts": self.texts}
        super().__init__([line_of(*controls), *shown.values()])
        name_parts(self, "dashboard", **dict(zip(names, controls)), **shown)
        self.step_button.on_click(lambda _: self.step())
        self.run_button.on_click(lambda _: self.pause() if self.is_running else self.run())
        self.add_button.on_click(lambda _: self.add())
        self.trouble_button.on_click(lambda _: self.make_trouble())
        self._say("Add a story, then step or run.")
        self._lanes = LaneRecorder(engine)
        self.metrics = EngineMetrics(engine)
        self._observers = [self._lanes, self._follow]
        engine.core.observers += self._observers
        self.redraw()

    def step(self) -> None:
        """One step of the engine."""
        with self._one_at_a_time:
            self._step()
            self.redraw()

    def add(self) -> None:
        """Add a request with the story in the text field."""
        self._attempt(
            lambda: f"Request {self.engine.add_request(self.prompt.value, self.params)} waits for the next step."
        )

    def make_trouble(self) -> None:
        """Do to the engine what the list says."""
        self._attempt(lambda: _TROUBLES[self.trouble.value](self))

    def _attempt(self, act: Callable[[], str]) -> None:
        with self._one_at_a_time:
            try:
                self._say(act())
            except Exception as error:  # show the learner what the engine refuses
                self._say(f"Refused. {type(error).__name__}: {error}")
            self.redraw()

    def run(self) -> None:
        """Run steps until no request is left, between the kernel's other work. Without an event loop: all at once."""
        with self._one_at_a_time:
            self._set_running(True)
            try:
                self._task = asyncio.get_running_loop().create_task(self._keep_stepping())
            except RuntimeError:
                while self.is_running:
                    self._step()
                self.redraw()

    def pause(self) -> None:
        """Run no more steps. A step that is under way in another thread is finished first."""
        with self._one_at_a_time:
            self.is_running = False
            self.redraw()  # first, so that the page already shows the last step when it says it has paused
            self._say("Paused.")
            self._set_running(False)

    def close(self) -> None:
        with self._one_at_a_time:
            self._set_running(False)
        observers = self.engine.core.observers
        observers[:] = [each for each in observers if each not in self._observers]
        self.metrics.detach()
        super().close()

    async def _keep_stepping(self) -> None:
        while self._step_if_running(asyncio.current_task()):
            await asyncio.sleep(0.001)  # lets the kernel handle clicks

    def _step_if_running(self, task: asyncio.Task | None) -> bool:
        with self._one_at_a_time:
            if goes_on := self.is_running and task is self._task:  # pausing and running again starts a new task
                self._step()
            if not self.is_running:
                self.redraw()
            return goes_on

    def _step(self) -> None:
        try:
            ended = self.engine.step()
        except Exception as error:
            self._set_running(False)
            self._say(f"The step failed. {type(error).__name__}: {error}")
            return
        self.outputs += ended
        if ended:
            self._say(" ".join(f"Request {output.request_id} finished: {_reason(output)}." for output in ended[-3:]))
        if not self.engine.has_unfinished():
            self._set_running(False)

    def _set_running(self, is_running: bool) -> None:
        self.is_running = is_running
        self.run_button.description = "pause" if is_running else "run"

    def _follow(self, _step, _requests) -> None:
        if time.monotonic() - self._drawn_at >= _REDRAW_SECONDS or not self.engine.requests:
            self.redraw()

    def redraw(self) -> None:
        self._drawn_at = time.monotonic()
        self.texts.value = self._answers()
        self.picture.value = live_html(self._content())

    def _content(self) -> Picture | str:
        try:
            scheduler = self.engine.scheduler
            waiting, running = (
                [sequence.id for sequence in sequences] for sequences in (scheduler.waiting, scheduler.running)
            )
            snapshot, steps = self.metrics.snapshot(), list(self.metrics.recent)
            return draw_dashboard(snapshot, steps, waiting, running, list(self._lanes.steps), pool_use(self.engine))
        except Exception as error:  # a picture must not stop an engine
            return f"The engine could not be drawn. {type(error).__name__}: {error}"

    def _answers(self) -> str:
        """The texts of running requests and of the last ones that finished."""
        served = [(request.id, each) for request in list(self.engine.requests.values()) for each in request.completions]
        lines = [_line(name, self._text_of(each), "") for name, each in served if each.output_ids][:_MOST_TEXTS]
        for output in reversed(self.outputs[-_MOST_TEXTS:]):
            lines += [_line(output.request_id, completion.text, _reason(output)) for completion in output.completions]
        return "".join(lines[:_MOST_TEXTS])

    def _text_of(self, completion) -> str:
        if completion.detokenizer:
            return completion.detokenizer.text
        return self.engine.tokenizer.decode(completion.output_ids, skip_special_tokens=True).rstrip(HALF_A_CHARACTER)

    def _say(self, words: str) -> None:
        self.message.value = said(words)

    def _repr_mimebundle_(self, **kwargs) -> dict[str, str]:
        return {**super()._repr_mimebundle_(**kwargs), **still_bundle(self._content())}


def _a_crowd(dashboard: Dashboard) -> str:
    engine = dashboard.engine
    names = [engine.add_request(dashboard.prompt.value, dashboard.params) for _ in range(_CROWD)]
    return f"{_CROWD} requests have come at once: {', '.join(names)}."


def _a_long_prompt(dashboard: Dashboard) -> str:
    engine = dashboard.engine
    room = engine.fit.context or 256
    most = max(1, min(room, engine.scheduler.pool.num_blocks * engine.config.block_size) // 2)
    prompt = (list(engine.tokenizer(dashboard.prompt.value).input_ids) or [0]) * most
    name = engine.add_request(prompt[:most], dashboard.params)
    return f"Request {name} has a prompt of {most} tokens. It is computed in chunks, next to the others' decodes."


def _a_reader_leaves(dashboard: Dashboard) -> str:
    name = next(iter(dashboard.engine.requests), None)
    if name is None:
        return "There is no request whose reader could leave. Add one."
    dashboard.engine.abort(name)
    return f"The reader of request {name} has left: it is aborted, and its blocks are free."


def _a_fault(dashboard: Dashboard) -> str:
    runner = dashboard.engine.runner
    forward = runner.forward

    def fail(*args, **kwargs):
        runner.forward = forward
        raise RuntimeError("the model has failed, as asked for")

    runner.forward = fail
    return "The next forward pass will fail. Those whose tokens it computes end with an error; the others go on."


_TROUBLES = {
    f"{_CROWD} requests at once": _a_crowd,
    "a long prompt": _a_long_prompt,
    "a reader leaves": _a_reader_leaves,
    "the model fails once": _a_fault,
}


def _reason(output: RequestOutput) -> str:
    return f"{type(output.error).__name__}: {output.error}" if output.error else output.finish_reason


def _line(name: str, text: str, reason: str) -> str:
    """An answer so far, after the name of its request."""
    text = f"…{text[-_MOST_CHARACTERS:]}" if len(text) > _MOST_CHARACTERS else text
    colors = f"background:{color_of(name)};color:{text_on(color_of(name))}"
    chip = f'<span style="{colors};border-radius:3px;padding:1px 7px;font-weight:bold">{escape(name)}</span>'
    end = f' <span style="color:{SOFT_INK}">({escape(reason)})</span>' if reason else ""
    return f'<div style="line-height:20px;margin:4px 0">{chip} {escape(text)}{end}</div>'
