"""The exercises and the quiz of lesson 14: a stream's mailbox, the engine's owner, events on the wire, clients that
leave, what to refuse, and goodput.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_14.admitting import check_admission
from lessons_lib.checks.lesson_14.counting import check_goodput
from lessons_lib.checks.lesson_14.leaving import check_stream_until_gone
from lessons_lib.checks.lesson_14.mailbox import check_mailbox
from lessons_lib.checks.lesson_14.owning import check_own_engine
from lessons_lib.checks.lesson_14.quiz import QUIZ
from lessons_lib.checks.lesson_14.streaming import check_sse_events

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="14.1",
        title="the mailbox of a stream",
        reference="lessons_lib.serving.mailbox:Mailbox",
        test=check_mailbox,
        hints=(
            "An event says that there may be news, not what it is. Items stay in the list until the reader itself "
            "takes them out, and that's the very last thing that it does.",
            "In `take`: as long as there are no items and the mailbox is open, clear the event and wait for it. After "
            "that loop there is no `await` any more: give the reader the list, and start a new one.",
            "`while not self._items and not self.is_closed:` `self._has_news.clear()`, then `await "
            "self._has_news.wait()`. After the loop: `items, self._items = self._items, []` and `return items`.",
        ),
        points=2,
    ),
    Exercise(
        id="14.2",
        title="the owner's loop",
        reference="lessons_lib.serving.owner:own_engine",
        test=check_own_engine,
        hints=(
            "Which `await`s are in your cleanup? A second cancellation can hit each of them. Can you wait for the "
            "thread without one? The cell above the exercise does.",
            "A `while` over `commands.is_closed`, inside `try … finally`. In the loop: `take` if there are commands, "
            "or if `engine.open` is empty; otherwise the turn gets an empty list. `take` may return an empty list when "
            "the mailbox was closed: then there is nothing to do. In `finally`, without any `await`: "
            "`executor.shutdown(wait=True)`, which returns when the thread has come back, then close the engine.",
            "`arrived = [] if engine.open and not len(commands) else await commands.take()`; `if arrived or "
            "engine.open:` `deliver(await event_loop.run_in_executor(executor, engine.turn, arrived))`. `finally:` "
            "`executor.shutdown(wait=True)`, then `engine.close()`.",
        ),
        points=3,
    ),
    Exercise(
        id="14.3",
        title="a client that leaves",
        reference="lessons_lib.serving.http.leaving:stream_until_gone",
        test=check_stream_until_gone,
        hints=(
            "Two things are waited for at the same time, and either may end first. A coroutine can wait in one place "
            "only. And what you start has to be stopped again, on every way out.",
            "Two coroutines: one adds the request and sends its tokens (`send_all` does that, and aborts the request "
            "in its `finally`); the other calls `receive` until the message says that the client has left. Start both "
            "with `asyncio.ensure_future`. `asyncio.wait((one, other), return_when=asyncio.FIRST_COMPLETED)` returns "
            "when one has ended. In `finally`, cancel both.",
            "`sending = asyncio.ensure_future(send_all(add, send))`. `leaving` is a task of an inner coroutine: "
            '`while (await receive())["type"] != "http.disconnect": pass`. After the `wait`: `if not sending.done(): '
            "return False`, then `sending.result()`, which raises what went wrong, and `return True`. `finally:` "
            "`sending.cancel()` and `leaving.cancel()`.",
        ),
        points=3,
    ),
    Exercise(
        id="14.4",
        title="a stream on the wire (optional)",
        reference="lessons_lib.serving.http.chat_events:sse_events",
        test=check_sse_events,
        hints=(
            "What has been sent can't be taken back. So at each point ask: what do I know by now for certain, and has "
            "anything been sent already?",
            "A `for` over `batches` inside `try`: before the first batch's text, the role. Count tokens as you go; a "
            "count of 0 in `except` says that nothing was sent. The usage belongs in the `else` of the `try`. Catch "
            "`Exception`, which leaves out what closing a generator raises.",
            "`chunks, count = ChatChunks(head, prompt_tokens), 0`. In the loop: `if not count: yield chunks.role()`, "
            '`count += len(tokens)`, `yield chunks.text("".join(token.text for token in tokens), '
            "tokens[-1].finish_reason)`. `except Exception as error:` `if not count: raise`, then `yield "
            "chunks.error(error)`. `else:` `if prompt_tokens is not None: yield chunks.usage(count)`. At the end "
            "`yield DONE`.",
        ),
        points=3,
    ),
    Exercise(
        id="14.5",
        title="what to refuse (optional)",
        reference="lessons_lib.serving.admission:AdmissionControl",
        test=check_admission,
        hints=(
            "A refused request leaves the books as they were. If every check comes before every change, there is "
            "nothing to take back.",
            "`admit` checks three things in this order: does the prompt fit at all, is a request free, do the tokens "
            "fit now. Then it counts. `correct` shows how the two checks are used, and `release` what is counted.",
            "`_check_room`: return if the limit is None; `too_many = self.num_prompt_tokens + num_prompt_tokens - "
            'self.max_prompt_tokens`; `if too_many > 0: raise self._overloaded("…", 0, too_many)`. `admit`: '
            "`self._check_prompt(…)`, then `if self.max_requests is not None and self.num_requests >= "
            'self.max_requests: raise self._overloaded("…", 1, 0)`, then `self._check_room(…)`, then both sums.',
        ),
        points=2,
    ),
    Exercise(
        id="14.6",
        title="goodput (optional)",
        reference="lessons_lib.measuring.load.goodput:goodput",
        test=check_goodput,
        hints=(
            "Two questions. Which requests count? And over which seconds: those in which requests were offered, or "
            "those until the last one ended?",
            "For each record: `succeeded`, and for each of the three limits either None or at least the record's "
            "time. Count them, and divide by the window.",
            "`times = ((record.ttft, target.ttft), (record.tpot, target.tpot), (record.e2el, target.e2el))`; good is "
            "`record.succeeded and all(limit is None or seconds <= limit for seconds, limit in times)`.",
        ),
        points=1,
    ),
]
