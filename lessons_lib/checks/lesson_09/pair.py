"""The attempt and the reference, side by side on the same sequences."""

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_09.made_up import a_sequence, listed, names_of
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.scheduling.scheduler import conservative
from lessons_lib.scheduling.stalling import Deadlock, Scheduler

MOST_QUESTIONS = 200  # in one step; no correct scheduler asks that often


class Pair:
    """The attempt and the reference, each with its own pool and sequences.

    Args:
        requests: name -> (prompt tokens, max_tokens, answer tokens), optionally with an arrival time as the fourth.
    """

    def __init__(
        self,
        attempt,
        requests: dict[str, tuple],
        case: str,
        *,
        num_blocks: int,
        block_size: int = 4,
        admission=conservative,
        policy=None,
        **limits,
    ):
        self.case, self.requests = case, requests
        limits |= {"policy": policy}
        self.mine = call(
            lambda: attempt(BlockPool(num_blocks, block_size), admission=self._asked(admission), **limits), case=case
        )
        self.want = Scheduler(BlockPool(num_blocks, block_size), admission=admission, **limits)
        self.questions = 0
        self.number = 0
        self.stalls: dict[int, list[str]] = {}  # step -> what stalled in it, for the steps before this one

    def add(self, *names: str) -> None:
        for scheduler in (self.mine, self.want):
            for name in names:
                prompt, max_tokens, _, *arrival = self.requests[name]
                scheduler.add(a_sequence(name, prompt, max_tokens=max_tokens, arrival=arrival[0] if arrival else 0.0))

    def add_begun(self, name: str, answered: int, computed: int) -> None:
        """Add a sequence that has run before: `answered` answer tokens are known, `computed` tokens are cached."""
        prompt, max_tokens, _ = self.requests[name]
        for scheduler in (self.mine, self.want):
            sequence = a_sequence(name, prompt, answered=answered, computed=computed, max_tokens=max_tokens)
            sequence.blocks = scheduler.pool.allocate(blocks_for(computed, scheduler.pool.block_size))
            scheduler.add(sequence)

    def _asked(self, admission):
        """The admission rule, with a limit on how often it may be asked."""

        def ask(scheduler, sequence) -> bool:
            self.questions += 1
            if self.questions > MOST_QUESTIONS:
                what = (
                    f"the admission rule was asked {MOST_QUESTIONS} times in one step, the last time about "
                    f"{sequence.id}."
                )
                raise Mistake(
                    what,
                    case=self.now(),
                    idea=(
                        "Does the loop ever end? If the next sequence can't be admitted, stop: `break`, not `continue`."
                    ),
                )
            return admission(scheduler, sequence)

        return ask

    def _scheduled(self, scheduler):
        try:
            return call(scheduler.schedule, case=self.now()), None
        except Deadlock as error:
            return None, error
        except OutOfBlocks as error:
            idea = (
                "Check first: if more blocks are missing than `len(self.pool.free_queue)`, the sequence stalls, "
                "and nothing is allocated."
            )
            raise Mistake(
                f"`schedule` raised OutOfBlocks: {str(error).split('. ')[0]}.", case=self.now(), idea=idea
            ) from None
        except ValueError as error:
            if "does not wait in this queue" in str(error):
                raise Mistake(
                    f"`schedule` raised ValueError: {error}",
                    case=self.now(),
                    idea="Was it removed before? `self.admit(scheduler_output, sequence)` takes it out of the queue.",
                ) from None
            if "can't allocate" not in str(error):
                raise
            idea = (
                "More blocks were subtracted than needed. After this step, `num_computed_tokens + count` tokens are in "
                "the cache. Do you count the blocks for all of them before you subtract those that the sequence has?"
            )
            if both := [name for name in names_of(scheduler.running) if name in names_of(scheduler.waiting)]:
                idea = (
                    f"{listed(dict.fromkeys(both))} runs and is still in the queue, so it was admitted again: "
                    "`self.admit(scheduler_output, sequence)` takes it out."
                )
            raise Mistake(f"`schedule` raised ValueError: {error}", case=self.now(), idea=idea) from None
        except IndexError:
            if len(self.mine.waiting):
                raise
            raise Mistake(
                "`schedule` raised IndexError, and the queue is empty.",
                case=self.now(),
                idea="`waiting.next` needs a waiting sequence: make `self.waiting` part of the loop's condition.",
            ) from None

    def now(self) -> str:
        return f"{self.case} Step {self.number}."
