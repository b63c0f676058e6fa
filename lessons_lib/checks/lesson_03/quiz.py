"""The quiz of lesson 03."""

SLIPS = """
03.a 5: Nothing erases a freed block, but C has both of A's now, and has overwritten a part of them.
03.a 0: Look at the order: `free` puts A's last block into the queue first, so C's first block is A's second.
03.a 3: Those are overwritten. The others are still A's.
03.b 21.3: 512 / 24 leaves out the empty slots: about half of each request's last block.
03.b 32: That is the number of blocks, and a request with 24 tokens needs more than one.
"""

QUIZ = """
By mistake, `free` puts a request's blocks into the queue first block first. What gets worse?
- The answers: a later request may read old keys.
  A request writes each slot before it reads it, whatever the order of the queue.
- Long requests no longer fit, as free blocks aren't next to each other.
  They don't have to be. That is the point of the table: any free block will do.
+ Later requests that begin with the same text find less of it intact.
  The beginning is then overwritten first, and a tail without its beginning is useless.
- Nothing: free blocks are all alike. => For their next owner they are. But their old keys differ.

Requests hold about 1,000 tokens each, no two the same length. You change the block size from 16 to 64. What happens to
the percentage of memory that is wasted?
+ It becomes about four times as large.
  About half a block per request is empty: 8 slots before and 32 now, compared with 1,000 tokens.
- It stays the same, because the requests do.
  The last block of each request is half empty on average, and it is now four times as large.
- It falls, because there are fewer blocks. => The tables have fewer entries, but the last blocks have more empty slots.
"""
