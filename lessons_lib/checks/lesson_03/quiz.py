"""The quiz of lesson 03."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="An oracle says how long each answer will be, and the system reserves exactly that, in one piece. Why is much of "
        "the memory empty all the same?",
        choices=(
            Choice(
                "The oracle reserves for the longest possible answer, so the end of each reservation is never used.",
                "It reserves exactly what the request will need. No place stays empty to the end.",
            ),
            Choice(
                "Places are reserved at once and filled one by one; and gaps of the wrong size are left.",
                "While an answer grows, on average about half of what is reserved for it is still to come. That is reservation; "
                "the gaps are external fragmentation.",
                right=True,
            ),
            Choice(
                "Keys and values of finished requests stay in their places, and nobody else can use these.",
                "What lies there is free to be written over. It is no waste as long as somebody else may have the place.",
            ),
        ),
    ),
    Question(
        text="Block size 16. A request has 144 tokens in its table and gets one more. What happens?",
        choices=(
            Choice("Nothing is allocated: its ninth block has room.", "144 = 9 × 16: the ninth block is exactly full."),
            Choice(
                "It takes a tenth block.",
                "Position 144 is the first cell of block 144 // 16 = 9 of its table, the tenth.",
                right=True,
            ),
            Choice(
                "It took its tenth block with the token before.",
                "Position 143 is the last cell of the ninth block. A table takes a block when a token needs it, not before.",
            ),
        ),
    ),
    Question(
        text="A request's table is [7, 2, 5], the block size is 4. Where do the key and value of position 6 go?",
        choices=(
            Choice(
                "To slot 10.", "6 // 4 = 1 is the second block of the table, number 2. 2 × 4 + 6 % 4 = 10.", right=True
            ),
            Choice(
                "To slot 6.",
                "That is the position in the request. The table says where the request's second block lies in the pool.",
            ),
            Choice(
                "To slot 4.",
                "That is 2 + 2, the block's number and the offset. There are two blocks of 4 slots before block 2: multiply by the block size.",
            ),
            Choice("To slot 22.", "That takes block 5, the third. Positions 4 to 7 lie in the second."),
        ),
    ),
    Question(
        text="Why does the pool take a request's blocks back last block first?",
        choices=(
            Choice(
                "It is faster: the end of the queue is nearer to the last block.",
                "Both ways put the same number of blocks at the end of the queue.",
            ),
            Choice(
                "Otherwise the free blocks would not lie next to each other, and no long request would fit.",
                "They need not. That is the point of the table: any free block will do.",
            ),
            Choice(
                "The tail is then written over first, and the beginning stays whole for longest.",
                "A later request with the same beginning could use those keys, if they are still there. A tail without its "
                "beginning is of use to nobody.",
                right=True,
            ),
        ),
    ),
    Question(
        text="Requests of about 1,000 tokens, all different. You change the block size from 16 to 64. What happens to the share "
        "of the memory that is wasted?",
        choices=(
            Choice(
                "It becomes about four times as large.",
                "About half a block a request: from 8 to 32 places beside 1,000 tokens.",
                right=True,
            ),
            Choice(
                "It stays as it is, since the requests are the same.",
                "The last block of each request is half empty on average, and it is four times as large now.",
            ),
            Choice(
                "It falls, since there are fewer blocks.",
                "There are fewer entries in the tables. The cells of the last block that lie empty become more.",
            ),
        ),
    ),
    Question(
        text="A pool of 20 blocks. A asks for 3 blocks, and 2 are free. Why does `allocate` refuse instead of giving the 2?",
        choices=(
            Choice(
                "Two blocks are too few to be worth a call: each call takes time between two steps.",
                "A call for one block is the usual one, while a request decodes.",
            ),
            Choice(
                "A could not take its step with two, and others that could would lack them.",
                "All or nothing: a refused call leaves everything as it was, and the caller can decide who waits.",
                right=True,
            ),
            Choice(
                "The two and the third, once it is free, would not lie next to each other.",
                "They never need to: the table says where each of them lies.",
            ),
        ),
    ),
]
