"""The quiz of lesson 14."""

SLIPS = """
14.a 12: The event loop is free during the break, but the engine isn't driven by it. Who calls its `step`?
14.a 0: Both requests are in the engine: each step computes a token for C, too.
14.b 368: That is when the last round starts. The last request came after 8 rounds already: it waits for 15.
14.b 384: That is when everything has ended. The last request waits for its first token, from its arrival on.
"""

QUIZ = """
A reader is slow: its mailbox holds 40 tokens. What should the engine do?
- Wait for the reader before it computes the next token.
  Then one slow connection would slow down all requests of the batch.
+ Go on; the reader takes all 40 at once when it can.
  `put` never waits, and the reader catches up in one go. At most `max_tokens` tokens can pile up.
- Drop the oldest tokens, as a live video does. => A video can lose a frame. An answer with a hole is wrong.
- Preempt the request until the reader has caught up.
  Its blocks would have to be computed again later. The tokens themselves are tiny.

A client hangs up while its request waits in the queue, with no token yet. Where should the server look to notice it?
+ At the call of `receive` that waits next to the work.
  It returns `http.disconnect`, from the first moment on. Then the work is cancelled, and the request is aborted before
  it has cost a step.
- At the first write to the connection: it fails.
  There is nothing to write yet. And the first write after a hang-up often raises nothing.
- At the request's mailbox: nothing is taken from it.
  A mailbox that isn't read looks like a slow reader. The engine doesn't look at mailboxes at all.

Users will send twice what your server can take. You load-test it with 16 clients, each of which sends its next request
when its answer is there. What do you learn about the overload?
- How fast the queue grows.
  16 clients have at most 16 requests in the server. The next one comes only after an answer.
- Which status refused requests get. => With 16 clients, nothing has to be refused.
+ Nothing: it never happens.
  A closed loop sends as fast as the server answers, so latencies look good. Send requests at their times, whatever the
  server does: an open loop.
"""
