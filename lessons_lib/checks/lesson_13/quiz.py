"""The quiz of lesson 13."""

SLIPS = """
13.a 3: The move of the weights makes all graphs stale.
13.a 6: A size is captured again when a step needs it. No step needs 16 again.
13.a 7: Steps of 3, and later of 2, use the graph of 4: sizes are captured, not steps.
13.b 500: That is one after the other. While the device computes, the CPU launches the next step.
13.b 300: The device can't start before the CPU has launched the first step.
13.b 200: The device is the slower side here.
13.c 6: When a request leaves, the rows of those after it move.
13.c 0: Nothing goes wrong before a request leaves that isn't the last of the batch.
13.c 1: D leaves first, as the last of the batch: no row moves.
"""

QUIZ = """
In the last row of the table above, an overlapped step takes 2.1 ms: the CPU works for 1.5 ms of it, and the GPU
computes all the time. You have time for one project. Which one do you take?
- Python that takes half the time: then the step takes 1.4 ms.
  The CPU's work is hidden behind the GPU's. The step still takes 2.1 ms.
- Kernels that take half the time: then the step takes 1.1 ms.
  The kernels are the right project, but then the CPU is the slower side.
+ Kernels that take half the time: then the step takes 1.5 ms.
  An overlapped step takes as long as the slower of the two, which is the CPU then. On a larger model the kernels take
  longer, and the CPU matters less.
- Either: both are part of each step. => They run at the same time, so only the slower one counts.

A step of 5 decodes is padded to the captured size 8. By mistake, the cache slots of the three padding sequences are
still those of the last step, in which 8 sequences decoded. What happens?
- Nothing: what padding computes is thrown away.
  Its logits are. But it also writes keys and values, into the slots that it is given.
+ Keys and values of other sequences may be overwritten.
  The three have left, and their blocks may belong to others by now. That is what the null block is for: it belongs to
  no sequence.
- An error: those sequences have ended. => A graph knows no sequences. It writes to any slot in its buffers.
- The 5 real sequences attend to padding. => Each attends through its own block table, which padding doesn't change.

Each answer has 9 tokens, an end token last: one from the prompt's step, 8 from decodes. The engine overlaps its steps.
What share of the decodes that it computes is thrown away?
- None: the step in flight is canceled.
  GPU work that has been launched can't be canceled, and the other sequences need its results.
- None: the scheduler waits for a token that may be the last.
  Any token may be the last. If it waited, there would be no overlap; a placeholder stands for the token.
+ A ninth => When the end token is known, the next step has been launched with the sequence in it: one decode in nine.
- Half
  Only the decode after the end token isn't needed. All others were launched before their input was known on the CPU,
  and are right.
"""
