"""The quiz of lesson 14."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A reader is slow: its mailbox holds 40 tokens. What does the engine do?",
        choices=(
            Choice(
                "It waits for the reader before it computes the next token.",
                "Then one slow connection would slow down all requests of the batch.",
            ),
            Choice(
                "It goes on; the reader takes all 40 at once when it can.",
                "`put` never waits, and the reader catches up in one go. At most `max_tokens` tokens can pile up.",
                right=True,
            ),
            Choice(
                "It drops the oldest tokens, as a live video does.",
                "A video can lose a frame. An answer with a hole is wrong.",
            ),
            Choice(
                "It preempts the request until the reader has caught up.",
                "Its blocks would have to be computed again later. The tokens themselves are tiny.",
            ),
        ),
    ),
    Question(
        text="The owner's coroutine is cancelled while a turn runs in the thread. What happens to that turn?",
        choices=(
            Choice(
                "It stops at the next line of Python.",
                "Cancelling reaches coroutines, at an await. A thread doesn't notice.",
            ),
            Choice(
                "It is undone.",
                "Nothing undoes a step. Blocks that it has allocated are freed when the engine is closed.",
            ),
            Choice(
                "It goes on to its end, so the owner has to wait for it before it closes the engine.",
                "Otherwise two threads would be in the engine. And it waits without `await`, because it might be "
                "cancelled once more.",
                right=True,
            ),
            Choice(
                "It goes on, and the engine's lock makes it safe to close the engine at once.",
                "The lock would make the close wait, in the event loop's thread, but the turn's requests would end "
                "unseen, and an engine without a lock would break. Wait for the thread first.",
            ),
        ),
    ),
    Question(
        text="A client hangs up while its request waits in the queue: no token is there yet. How does the server learn "
        "of it?",
        choices=(
            Choice(
                "The first write to the connection fails.",
                "There is nothing to write yet. And the first write after a hang-up often raises nothing.",
            ),
            Choice(
                "The call of `receive` that waits next to the work returns `http.disconnect`.",
                "That's why it has to listen from the first moment on. Then it cancels the work, and the request is "
                "aborted before it has cost a step.",
                right=True,
            ),
            Choice(
                "The engine sees that nothing is taken from the request's mailbox.",
                "A mailbox that isn't read looks like a slow reader. The engine doesn't look at mailboxes at all.",
            ),
        ),
    ),
    Question(
        text="In production, requests arrive at twice the rate that a server can take, for an hour. None is refused. "
        "Before that, the server was load-tested in a closed loop, with 16 clients. What did that test show?",
        choices=(
            Choice(
                "A queue that grows for an hour.",
                "16 clients have at most 16 requests in the server. The next one comes only after an answer.",
            ),
            Choice(
                "Good latencies: at most 16 requests are ever in the server.",
                "A closed loop sends as fast as the server answers. It never offers the load that the users would.",
                right=True,
            ),
            Choice(
                "Refused requests, status 429.",
                "Nothing is refused here, and with 16 clients nothing would have to be.",
            ),
        ),
    ),
    Question(
        text="For an hour, a server was asked for three times what it can serve, and refused nothing. It serves as "
        "many tokens per second as ever, and its goodput is near 0. How can that be?",
        choices=(
            Choice(
                "The tokens are wrong: an overloaded engine makes mistakes.",
                "The tokens are the same. They come late.",
            ),
            Choice(
                "Nearly every request is served, but after its promised time.",
                "The queue has grown so long that even the work that is done comes too late for its promise.",
                right=True,
            ),
            Choice(
                "Most of the time goes into refusing requests.",
                "A refusal costs next to nothing, and this server refuses none.",
            ),
            Choice(
                "Goodput counts only requests that were refused in time.",
                "It counts those that were served in time. A refused request is never good.",
            ),
        ),
    ),
]
