"""Lesson 12: log-probabilities of all rows of a step at once, computed on the device and sent to the host with its
tokens. A step without requests that ask for them never comes here."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from lessons_lib.engine.input_batch import num_extra_logits
from lessons_lib.engine.logprobs import TokenLogprobs
from lessons_lib.engine.model_runner import InFlight
from lessons_lib.engine.request import Request
from lessons_lib.engine.rules import to_device
from lessons_lib.scheduling.scheduler import SchedulerOutput

NUM_LOGITS_AT_ONCE = 2**26  # prompts may have thousands of rows
CHUNK = 128  # logits, see `likeliest`


class Wanted(NamedTuple):
    """Log-probabilities that a request asks for.

    Attributes:
        row: of the logits.
        token: whose; -1 for the one that is chosen from this row.
        position: of the token in the prompt; None for the next one of the completion.
    """

    request: Request
    row: int
    token: int = -1
    position: int | None = None


def wanted_in(output: SchedulerOutput) -> dict[int, list[Wanted]]:
    """Collect what the requests of a launched step ask for: how many of the likeliest tokens -> for which rows."""
    scheduled: dict[Request, int] = output.num_scheduled_tokens  # type: ignore[assignment]
    wanted: dict[int, list[Wanted]] = {}
    extra = len(scheduled)  # where the other rows begin
    steps = zip(scheduled.items(), output.ends, output.gets_token)
    for row, ((request, count), end, gets_token) in enumerate(steps):
        params, prompt_ids, start = request.params, request.prompt_ids, end - count
        num_others = num_extra_logits(output, request, start, count) if count > 1 else 0
        others = range(extra, extra + num_others)
        if request.prompt_logits and params.prompt_logprobs is not None and start + 1 < len(prompt_ids):
            positions = range(start + 1, min(end + 1, len(prompt_ids)))
            found = [Wanted(request, own, prompt_ids[place], place) for own, place in zip((*others, row), positions)]
            wanted.setdefault(params.prompt_logprobs, []).extend(found)
        if params.logprobs is not None and gets_token:
            own = wanted.setdefault(params.logprobs, [])
            if request in output.drafts:
                own += [Wanted(request, each) for each in others]
            own.append(Wanted(request, row))
        extra += num_others
    return wanted


@dataclass(frozen=True)
class StepLogprobs:
    """The log-probabilities of a step, on their way to the host.

    Attributes:
        tables: what is asked for, and a `logprobs_table` with a row for each.
    """

    tables: list[tuple[list[Wanted], InFlight]]

    @classmethod
    def launch(cls, output: SchedulerOutput, logits: torch.Tensor, tokens: InFlight) -> "StepLogprobs":
        """Start to compute them.

        Args:
            output: of the step, once it is launched.
            logits: [requests + extra, vocabulary]: after the last token of each request, then after others of prompts.
            tokens: that were chosen, one for each request, and where there are guesses, for each row of the logits.
        """
        num_seqs, tables = len(output.num_scheduled_tokens), []
        for count, entries in wanted_in(output).items():
            rows = [each.row for each in entries]
            known = to_device([each.token for each in entries], logits.device)
            if rows == list(range(num_seqs)):  # all requests ask for them, as in most batches: nothing is copied
                looked_at, chosen = logits[:num_seqs], tokens.on_device
            else:
                index = to_device(rows, logits.device)
                looked_at, chosen = logits[index], tokens.on_device[index.clamp(max=len(tokens.on_device) - 1)]
            table = logprobs_table(looked_at, torch.where(known < 0, chosen, known), count)
            tables.append((entries, InFlight.of(table)))
        return cls(tables)

    def note(self) -> None:
        """Wait for them, and give them to their requests. After a preemption, those of a prompt may be there already,
        and are the same."""
        for entries, table in self.tables:
            if table.arrived is not None:
                table.arrived.synchronize()
            tokens, rows = table.on_host[:, 0].tolist(), table.on_host.numpy().tobytes()
            size = len(rows) // len(tokens)
            for place, ((request, _, _, position), token) in enumerate(zip(entries, tokens)):
                row = rows[place * size : (place + 1) * size]
                if request.finish_reason or token < 0:
                    continue
                if position is None and request.logprobs is not None:
                    request.logprobs.rows.append(row)
                elif position is not None and request.group.prompt_logprobs:
                    request.group.prompt_logprobs[position] = TokenLogprobs.of(row)


def likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest logits of each row, largest first, and their tokens. [R, count].

    They are all in the `count` chunks with the largest maxima, so only those are sorted.

    Args:
        logits: [R, vocabulary].
    """
    vocabulary = logits.shape[-1]
    num_chunks = vocabulary // CHUNK
    if count >= num_chunks:
        return logits.topk(count)
    chunks = logits[:, : num_chunks * CHUNK].view(-1, num_chunks, CHUNK)
    best = chunks.amax(dim=-1).topk(count).indices[:, :, None]
    ids = best * CHUNK + torch.arange(CHUNK, device=logits.device)
    rest = torch.arange(num_chunks * CHUNK, vocabulary, device=logits.device).expand(len(logits), -1)
    ids = torch.cat([ids.flatten(1), rest], dim=1)
    values, index = logits.gather(1, ids).topk(count)
    return values, ids.gather(1, index)


def logprobs_table(logits: torch.Tensor, tokens: torch.Tensor, count: int) -> torch.Tensor:
    """The log-probabilities of a token of each row, and of the likeliest ones.

    Args:
        logits: [R, vocabulary].
        tokens: int64 [R]. If one is negative, what is found for it has no meaning.
        count: how many of the likeliest to find in each row; -1 for all.

    Returns:
        float64 [R, 3 + 2 * count], on the device: token, log-probability, rank; then the log-probabilities of the
        likeliest, and their ids.
    """
    vocabulary, parts = logits.shape[-1], []
    count = vocabulary if count < 0 else min(count, vocabulary)
    at_once = max(1, NUM_LOGITS_AT_ONCE // vocabulary)
    for part, own in zip(torch.split(logits, at_once), torch.split(tokens[:, None], at_once)):
        logprobs, index = part.log_softmax(dim=-1, dtype=torch.float32), own.clamp(min=0)
        ids = likeliest(part, count)[1]
        rank = (part > part.gather(1, index)).sum(dim=-1, keepdim=True) + 1
        columns = own, logprobs.gather(1, index), rank, logprobs.gather(1, ids), ids
        parts.append(torch.cat([column.double() for column in columns], dim=1))
    return torch.cat(parts)
