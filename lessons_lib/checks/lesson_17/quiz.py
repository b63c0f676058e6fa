"""The quiz of lesson 17."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="An engine passes every item of `answers` and `batches`. Then `add_request` gets a prompt that is too "
        "long, raises ValueError, and `has_unfinished()` is True forever. What went wrong?",
        choices=(
            Choice(
                "`add_request` put the request into a list before it had checked all of it.",
                "A refusal changes nothing: check first, then append. The suite compares the engine before and after.",
                right=True,
            ),
            Choice(
                "The engine should have cut the prompt to fit instead.",
                "Then the caller gets an answer to a question that was never asked, and no error says so.",
            ),
            Choice(
                "ValueError is the wrong exception.",
                "ValueError is what the contract asks for. The state after it is the fault.",
            ),
            Choice(
                "`has_unfinished` should leave out requests that were refused.",
                "It should never meet one: a refused request must be in no list at all.",
            ),
        ),
    ),
    Question(
        text="Four requests want 30 tokens each and run at once, and the model's passes are counted. Which count shows "
        "that all four share each pass?",
        choices=(
            Choice("4", "One pass computes one new token of each request, so 30 tokens can't come from 4 passes."),
            Choice(
                "About 30",
                "One pass for each token, for all four requests together. The prompts are part of the first.",
                right=True,
            ),
            Choice("About 120", "That is one pass for each token of each request: a loop over requests."),
            Choice("About 64", "Then two requests share each pass, and the other two wait."),
        ),
    ),
    Question(
        text="The model raises in one pass. What may an engine do with the requests of that pass?",
        choices=(
            Choice(
                "End them with `error`, or compute the pass again and finish them with the right tokens.",
                "Either way their readers learn the end. The suite accepts both, and then sends new requests.",
                right=True,
            ),
            Choice(
                "Remove them: their tokens can't be right any more.",
                "Removed without a word, they never end for their readers, which wait forever.",
            ),
            Choice(
                "Return the tokens of the last pass again.",
                "Then the stream has a token twice, and the answer is wrong from there on.",
            ),
            Choice(
                "Nothing: a model that fails once will fail always.",
                "Out of memory, for one, may be gone in the next step. And other requests wait.",
            ),
        ),
    ),
    Question(
        text="Your engine makes 1.3 times the tokens per second of the course's, on the tiny model of the scoreboard. "
        "What does that say?",
        choices=(
            Choice(
                "It will be 1.3 times as fast on a GPU with a large model.",
                "There, a step's time is mostly in the model, and copying caches costs much more than here.",
            ),
            Choice(
                "It does less work outside the model than the course's engine, which does more for each request.",
                "On a model this small, most of a step is Python. Blocks, sampling, metrics and text cost something.",
                right=True,
            ),
            Choice(
                "Its attention is better.",
                "Both call the same model, on as many tokens: the table says so.",
            ),
            Choice(
                "Nothing, since times can't be compared.",
                "Both served the same requests in the same run, in turns. The ratio is sound, for this workload.",
            ),
        ),
    ),
]
