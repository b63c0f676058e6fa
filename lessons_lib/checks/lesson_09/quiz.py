"""The quiz of lesson 09."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A sequence has a prompt of 40 tokens and 12 tokens of answer. It lost its cache. The budget is 32, and two others decode. How many of its tokens does the step compute?",
        choices=(
            Choice(
                "1, since it has begun to answer.",
                "Its last token can only be computed when the keys of all tokens before it are in the cache. Nothing of it is.",
            ),
            Choice(
                "30",
                "It wants 52: known minus computed. The two that decode take 2 of the 32, and it gets a chunk of 30.",
                right=True,
            ),
            Choice("32", "The two that decode come first, and take 2."),
            Choice(
                "40, its prompt.",
                "The step has room for 32 tokens, and two of them are taken. And its answer has to be computed again, too.",
            ),
        ),
    ),
    Question(
        text="Why do decodes come before prompts when the budget is shared out?",
        choices=(
            Choice(
                "Because the result would be wrong otherwise.",
                "The tokens are the same in any order. Only when they come differs.",
            ),
            Choice("Because a prompt must be computed in one step.", "It need not: a chunk of it will do."),
            Choice(
                "Because each takes one token, and without it its answer would end a step later.",
                "It costs little, and whether or not anybody reads along, its place and its blocks are free a step sooner.",
                right=True,
            ),
            Choice(
                "Because decodes need no blocks.",
                "A decode writes a key and a value too, and needs a new block whenever its last one is full.",
            ),
        ),
    ),
    Question(
        text="Blocks of 16, a pool of 20, watermark 0. Three sequences run, with 6 blocks promised to each; together they hold 7. A newcomer has a prompt of 20 and a cap of 13. What do the two rules say?",
        choices=(
            Choice(
                "Conservative: yes. Optimistic: yes.",
                "18 blocks are promised, and the newcomer would need 2 for 20 + 13 − 1 = 32 tokens: together 20 of 20. And 13 are free now.",
                right=True,
            ),
            Choice(
                "Conservative: no. Optimistic: yes.",
                "20 + 13 − 1 = 32 tokens are 2 blocks, and 18 + 2 = 20. A pool that is promised to the last block is enough.",
            ),
            Choice(
                "Conservative: yes. Optimistic: no.",
                "Optimistic admission looks at what is free now, 13 blocks, and the newcomer's prompt needs 2.",
            ),
            Choice(
                "Conservative: no. Optimistic: no.",
                "For neither is there too little: 20 of 20 blocks promised, 13 of 20 free.",
            ),
        ),
    ),
    Question(
        text="Shortest job first has the smallest mean latency in the table. What speaks against it?",
        choices=(
            Choice("It computes more tokens.", "It computes the same tokens in another order."),
            Choice(
                "Under load, long answers may never be served.",
                "New short ones keep coming in before the long one. And it needs lengths that nobody knows: with bad estimates it may be worse than first come, first served.",
                right=True,
            ),
            Choice("It needs more memory.", "As many sequences run at a time as with the others."),
            Choice(
                "Its answers differ from those of the others.",
                "No policy changes a token: the answers are the same, in another order.",
            ),
        ),
    ),
    Question(
        text="Priority with ageing, patience 10 s. P of tier 1 came at 100 s; Q of tier 0 comes at 112 s. Both wait. Who goes first, and may that change while they wait?",
        choices=(
            Choice(
                "Q, as tier 0 always goes first.",
                "That is strict priority. Here a tier is worth 10 seconds, and P has waited 12 seconds longer.",
            ),
            Choice(
                "Q at first; after some seconds of waiting P passes it.",
                "Q ages as well, second for second. The distance between the two stays what it was.",
            ),
            Choice(
                "P, and that does not change: both get older alike.",
                "P ranks as if it had come at 110 s, Q as of 112 s. These two numbers never change.",
                right=True,
            ),
            Choice(
                "P at first; then Q passes it, because its tier counts more.",
                "A tier counts the same at all times: 10 seconds, once.",
            ),
        ),
    ),
    Question(
        text="Patience 10 s, head start 4 s. P is a night job of tier 0 and came at 100 s. Q of tier 1 came at 95 s, and somebody reads along. Who goes first?",
        choices=(
            Choice(
                "Q, since somebody reads along.",
                "A reader is worth 4 seconds, no more. Q ranks as if it had come at 95 + 10 − 4 = 101 s, P as of 100 s.",
            ),
            Choice(
                "Q, since it came first.",
                "It came 5 seconds before P, and is one tier lower, which costs it 10 seconds. The head start gives back 4 of them.",
            ),
            Choice(
                "P, and it would go after Q if Q had come at 93 s.",
                "Q ranks as of 101 s, so P goes first. Come at 93 s, it would rank as of 99 s.",
                right=True,
            ),
            Choice(
                "P, since tier 0 goes before tier 1, reader or not.",
                "Not always: come 2 seconds earlier, Q would go before P.",
            ),
        ),
    ),
]
