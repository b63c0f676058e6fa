"""Right answers to the exercises of lesson 12, written in other ways than the reference, and wrong ones that a general
sentence explains. The other wrong ones are the checks' lists."""

import re

from answers import rights, slips

from lessons_lib.conformance.examples.engine_loop import engine_loop
from lessons_lib.engine.core import run_step
from lessons_lib.engine.plain_sampling import token_probabilities

GENERAL_LOOPS = """
makes your function a generator
- if gets_token ... yield => pass
only before a step
> yield => while inbox: scheduler.add(inbox.popleft())
none that has finished
~ [*scheduler.running, *scheduler.waiting] => list(output.num_scheduled_tokens)
The loop ends when
~ while inbox or scheduler.has_unfinished(): => while True:
"""
GENERAL_PROBABILITIES = """
A logit of −∞ means
~ logits.double() => logits.double().clamp(min=-10)
right, but rounded
~ logits.double() => logits.bfloat16().double()
doesn't add up to 1
= return probabilities, tokens
stays in its row
~ .softmax(dim=-1) => .softmax(dim=-1)[:, : top_k.max()]
"""
GENERAL_STEPS = """
Return what
- return core.count_launched
+ core.count_launched(scheduler_output, in_flight, logits)
+ return logits
in this order
~ core.sample(scheduler_output, logits)) => core.sample(logits, scheduler_output))
`scheduler_output.preempted` should
~ scheduler_output.swapped_out => [scheduler_output.preempted.pop() for _ in scheduler_output.swapped_out]
"""

LOOPS = """
by counting tokens
- scheduler.update( ... yield
+ before = {sequence: len(sequence.output_ids) for sequence in output.num_scheduled_tokens}
+ scheduler.update(output, list(compute(output)))
+ for sequence, count in before.items():
+     if len(sequence.output_ids) > count: yield sequence.id, sequence.output_ids[-1]
- for sequence in [*scheduler.running ... scheduler.remove => scheduler.reset()
in two parts
- try: ... yield
+ def step():
+     while inbox: scheduler.add(inbox.popleft())
+     output = scheduler.schedule()
+     tokens = compute(output)
+     scheduler.update(output, tokens)
+     scheduled = list(output.num_scheduled_tokens)
+     return [[each.id, token] for each, token, gets in zip(scheduled, tokens, output.gets_token) if gets]
+ try:
+     while len(inbox) > 0 or scheduler.has_unfinished(): yield from step()
- for sequence in [*scheduler.running ... scheduler.remove
+ while scheduler.running: scheduler.remove(scheduler.running[-1])
+ for sequence in tuple(scheduler.waiting): scheduler.remove(sequence)
with two handlers
- try:
+ def clean_up():
+     for sequence in list(scheduler.running) + list(scheduler.waiting):
+         sequence.finish_reason = "abort"
+         scheduler.remove(sequence)
+ try:
~ scheduler.has_unfinished() => len(scheduler.running) + len(scheduler.waiting)
- finally: ... scheduler.remove
+ except GeneratorExit:
+     clean_up()
+     raise
+ except (Exception, KeyboardInterrupt):
+     clean_up()
+     raise
"""

PROBABILITIES = """
row by row
- scaled, tokens = ... return
+ rows = []
+ for row, t, k, p in zip(logits.tolist(), temperature.tolist(), top_k.tolist(), top_p.tolist()):
+     order = sorted(range(len(row)), key=lambda token: -row[token])
+     kept = torch.tensor([row[token] / t for token in order[:k]], dtype=torch.float64).softmax(0).tolist()
+     left, total = [], 0.0
+     for value in kept:
+         left.append(0.0 if total >= p else value)
+         total += value
+     left += [0.0] * (len(row) - len(left))
+     rows.append(([value / sum(left) for value in left], order))
+ return torch.tensor([left for left, _ in rows]), torch.tensor([order for _, order in rows])
without a softmax: weights that are 1 for the likeliest token
- probabilities = scaled ... return
+ weights = (scaled - scaled[:, :1]).exp() * (rank.expand_as(scaled) < top_k.unsqueeze(-1))
+ shares = weights / weights.sum(dim=1, keepdim=True)
+ before = torch.nn.functional.pad(shares, (1, 0)).cumsum(dim=1)[:, :-1]
+ weights = weights * (before < top_p.unsqueeze(-1))
+ return weights / weights.sum(dim=1, keepdim=True), tokens
in float32, by argsort
- scaled, tokens = ... return
+ tokens = logits.argsort(dim=-1, descending=True, stable=True)
+ scaled = logits.gather(1, tokens) / temperature.unsqueeze(1)
+ scaled[torch.arange(logits.shape[-1])[None] >= top_k[:, None]] = -torch.inf
+ probabilities = scaled.softmax(-1)
+ before = torch.cat([torch.zeros(len(logits), 1), probabilities.cumsum(-1)[:, :-1]], dim=1)
+ scaled[before >= top_p[:, None]] = -torch.inf
+ return [scaled.softmax(-1), tokens]
"""

STEPS = """
as the list says
- if not requests => if len(requests) == 0:
- in_flight =
+ tokens = core.sample(scheduler_output, logits)
+ in_flight = core.keep_tokens(scheduler_output, tokens)
- raise StepFailed
+ swapped = [each for each in scheduler_output.preempted if each.swapped]
+ raise StepFailed(requests if requests else swapped) from error
copies block after block
- requests => requests = set(scheduler_output.num_scheduled_tokens)
~ scheduler_output.swapped_out => {each for each in scheduler_output.preempted if len(each.swapped) > 0}
- core.copy_blocks => for each in scheduler_output.block_copies: core.copy_blocks([each])
"""


def by_regular_expression(text, stop):
    match = re.search("|".join(map(re.escape, stop)), text) if stop else None
    if match:
        return [match.start(), True]
    for start in range(len(text)):
        if any(string.startswith(text[start:]) for string in stop):
            return [start, False]
    return [len(text), False]


def walking_through(text, stop):
    for start in range(len(text)):
        rest = text[start:]
        if any(rest.startswith(string) for string in stop):
            return start, True
    for start in range(len(text)):
        if any(string.startswith(text[start:]) for string in stop):
            return start, False
    return len(text), False


WRONG = {
    "12.1": slips(engine_loop, GENERAL_LOOPS),
    "12.2": slips(token_probabilities, GENERAL_PROBABILITIES),
    "12.3": slips(run_step, GENERAL_STEPS),
}
RIGHT = {
    "12.1": rights(engine_loop, LOOPS),
    "12.2": rights(token_probabilities, PROBABILITIES),
    "12.3": rights(run_step, STEPS),
    "12.4": [by_regular_expression, walking_through],
}
