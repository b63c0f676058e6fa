"""A scheduler's steps as a table, without a model."""

from lessons_lib.scheduling.stalling import Deadlock, Scheduler
from lessons_lib.viz.tables.table import Table

COLUMNS = ["step", "tokens", "stalled", "blocks", "free blocks", "finished"]


def step_table(scheduler: Scheduler, caption: str = "") -> Table:
    """Run a scheduler, a token 5 for each sequence in each step, until all have finished or a Deadlock ends it."""
    rows: list[list[object]] = []
    verdict = ""
    while scheduler.has_unfinished():
        try:
            output = scheduler.schedule()
        except Deadlock as error:
            verdict = f"Step {len(rows) + 1}: Deadlock: {error}"
            break
        tokens = ", ".join(f"{each.id} {count}" for each, count in output.num_scheduled_tokens.items())
        blocks = ", ".join(f"{each.id} {len(each.blocks)}" for each in scheduler.running)
        stalled, free = ", ".join(each.id for each in output.stalled), len(scheduler.pool.free_queue)
        finished = ", ".join(each.id for each in scheduler.update(output, [5] * len(output.num_scheduled_tokens)))
        rows.append([str(len(rows) + 1), tokens, stalled or "–", blocks, free, finished or "–"])
    return Table(COLUMNS, rows, caption=caption, verdict=verdict)
