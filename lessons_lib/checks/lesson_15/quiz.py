"""The quiz of lesson 15."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="Three replicas and an imbalance limit of 3. When a request arrives, 15 others are running. What is the "
        "most requests that one replica can ever serve at a time, the new one included?",
        choices=(
            Choice(
                "6: the limit and twice the least load of 1, plus the new one.",
                "The least loaded replica may have up to 5. With 4, the chosen one may have 7 before the new one.",
            ),
            Choice(
                "8.",
                "If the least loaded one has m, the chosen one has at most m + 3, and at most 15 - 2m. With m = 4 both "
                "are 7; the new request makes 8.",
                right=True,
            ),
            Choice(
                "9: an equal share is 5, plus the limit, plus the new one.",
                "If one replica has 8, the other two share 7, so the least loaded one has at most 3, and 8 is more "
                "than 3 + 3.",
            ),
            Choice(
                "16: all of them, if they begin alike.",
                "Only without a limit. With it, a replica that is 4 ahead isn't chosen for its prefix.",
            ),
        ),
    ),
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
