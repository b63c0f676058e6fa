"""The quiz of lesson 15."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A replica dies after 7 tokens of a completion with temperature 1 and seed 3. The balancer sends the "
        "prompt and the 7 tokens as one longer prompt to another one, with the same seed. What does the reader get?",
        choices=(
            Choice(
                "The same completion as without the failure: the model sees the same tokens.",
                "The model gives the same probabilities. But token 8 is now drawn with the first random number of the "
                "seed "
                "instead of the eighth.",
            ),
            Choice(
                "An error: a prompt can't end in the middle of an answer.",
                "To the model it's just tokens. Nothing tells a prompt from an answer.",
            ),
            Choice(
                "A completion that goes on well, but with other tokens than without the failure.",
                "The probabilities are right, but the random numbers differ. That is fine without a seed. A seed "
                "promises the same tokens.",
                right=True,
            ),
            Choice(
                "The first 7 tokens twice.",
                "The new replica returns only what comes after its prompt. They would come twice if the *first* "
                "request "
                "were sent again.",
            ),
        ),
    ),
    Question(
        text="A request crashes each engine that computes it. The balancer moves lost streams to another replica, "
        "without a limit. There are eight replicas. What is the damage?",
        choices=(
            Choice(
                "One replica is lost: the balancer sees that the request is bad and refuses it.",
                "From outside, a crash looks the same whatever the cause. The balancer sees only a broken connection.",
            ),
            Choice(
                "None: a crashed engine is restarted at once.",
                "A start takes from seconds to minutes, and the streams that were in it are lost or have to move.",
            ),
            Choice(
                "Two, because prefix affinity sends it only to the replicas that know its prompt.",
                "Affinity prefers a replica. It doesn't forbid the others, and a lost one isn't asked again.",
            ),
            Choice(
                "All eight are lost, and with them every stream.",
                "Each one dies of it in turn. With `max_moves` = 1, two die. Engines should turn bad requests away "
                "before they "
                "compute anything, but the limit is still needed.",
                right=True,
            ),
        ),
    ),
    Question(
        text="A stream with `max_moves` = 1 is lost after 30 tokens and moved. The second replica's stream just ends, "
        "without a `finish_reason`, after 10 more of at most 200. What does the balancer do?",
        choices=(
            Choice(
                "It passes the end on: the model had nothing more to say.",
                "Then the last chunk would have the reason 'stop'. A reader that gets no reason can't tell a complete "
                "answer from one that was cut off.",
            ),
            Choice(
                "It asks a third replica for the rest, with all 40 tokens as `output_token_ids`.",
                "An end without a reason is a loss, and it would be right with another move left. But one was the "
                "limit.",
            ),
            Choice(
                "It ends the stream with the reason 'error'.",
                "An end without a reason counts as a loss, and no move is left. The reader learns that the answer "
                "isn't complete.",
                right=True,
            ),
            Choice(
                "It adds the reason 'length'.",
                "The completion has 40 of 200 tokens. A wrong reason makes part of an answer look complete.",
            ),
        ),
    ),
]
