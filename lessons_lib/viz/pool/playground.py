"""A block pool to play with: append tokens to requests, free them, and see what the pool does."""

from collections.abc import Callable
from copy import deepcopy

import ipywidgets as widgets

from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.recording.pool_states import pool_state
from lessons_lib.recording.words import count, numbered
from lessons_lib.viz.controls import button, line_of, name_parts, said
from lessons_lib.viz.drawing.picture import Picture, live_html, still_bundle
from lessons_lib.viz.pool.grid import draw_pool

Outcome = tuple[str, tuple[int, ...]]  # what happened, in words, and which blocks were allocated or freed


class PoolPlayground(widgets.VBox):
    """Drives a pool by hand. A refused call shows its message. The pool and the tables may be yours.

    pool       the pool to start from. It doesn't change: the playground uses a copy
    new_table  makes the block table of a request, given the pool

    `pool` and `tables` (request -> its table) are what is shown, for inspection from other cells.
    Keyboard: Tab from one control to the next, Enter for a button.
    Where no kernel runs (GitHub, an exported page), the last picture is shown.
    """

    def __init__(self, pool, new_table: Callable = BlockTable):
        self._fresh, self._new_table = pool, new_table
        self.pool, self.tables = pool, {}
        # Buttons and no drop-down list: JupyterLab takes arrow keys and letters away from a list, and makes cells of
        # them.
        self.request = widgets.ToggleButtons(
            options=list("ABCDEF"), tooltips=[f"request {name}" for name in "ABCDEF"], style={"button_width": "33px"}
        )
        self.tokens = widgets.BoundedIntText(
            value=5, min=0, max=9999, description="tokens", layout=widgets.Layout(width="150px", margin="0 0 0 16px"), style={"description_width": "initial"},  # noqa: E501
            # else the value and a button click would be sent at the same time, and might arrive in the wrong order
            continuous_update=True,
        )  # fmt: skip
        self.append_button = button("append", "append this many tokens to the request; its first tokens create it")
        self.free_button = button("free", "free all blocks of the request")
        self.again_button = button("start again", "start again with the original pool")
        # Two lines, so that the picture doesn't move.
        self.message = widgets.HTML(layout=widgets.Layout(min_height="48px", max_width="900px"))
        self.picture = widgets.HTML(layout=widgets.Layout(width="auto", margin="0"))
        controls = [self.request, self.tokens, self.append_button, self.free_button, self.again_button]
        super().__init__([line_of(widgets.Label("request"), *controls), self.message, self.picture])
        parts = dict(zip(("request", "tokens", "append", "free", "again"), controls))
        name_parts(self, "pool", **parts, message=self.message, picture=self.picture)
        self.append_button.on_click(lambda _: self._attempt(self._append))
        self.free_button.on_click(lambda _: self._attempt(self._free))
        self.again_button.on_click(lambda _: self._attempt(self._start))
        self._attempt(self._start)

    def _start(self) -> Outcome:
        self.pool, self.tables = deepcopy(self._fresh), {}
        return "Choose a request and a number of tokens, then append.", ()

    def _append(self) -> Outcome:
        name, known = self.request.value, self.request.value in self.tables
        table = self.tables[name] if known else self._new_table(self.pool)
        had = len(table.blocks)
        table.append(self.tokens.value)
        self.tables[name] = table  # only now: a request refused on its first call has no table
        taken = tuple(table.blocks[had:])
        takes = f"{'grows' if known else 'arrives'} and takes {numbered('block', taken)}"
        return f"{name}, now {count(table.num_tokens, 'token')}, {takes if taken else 'needs no new block'}.", taken

    def _free(self) -> Outcome:
        name = self.request.value
        if name not in self.tables:
            return f"{name} owns no blocks: there is nothing to free. Append tokens to it first.", ()
        blocks = tuple(self.tables[name].blocks)
        self.tables[name].release()
        del self.tables[name]
        return f"{name} frees {numbered('block', blocks)}.", blocks

    def _attempt(self, act: Callable[[], Outcome]) -> None:
        """Do it, or say why it was refused; then show the result."""
        try:
            self._event, self._changed = act()
        except Exception as error:  # refusals are expected, and so are mistakes in a learner's pool
            self._event, self._changed = f"Refused. {type(error).__name__}: {error}", ()
        self.message.value = said(self._event)
        self.picture.value = live_html(self._content())

    def _content(self, event: str = "") -> Picture | str:
        try:
            return draw_pool(pool_state(self.pool, self.tables, event, self._changed))
        except Exception as error:
            return f"The pool could not be drawn. {type(error).__name__}: {error}"

    def _repr_mimebundle_(self, **kwargs) -> dict[str, str]:
        return {**super()._repr_mimebundle_(**kwargs), **still_bundle(self._content(self._event))}
