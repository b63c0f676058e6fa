"""The quiz of lesson 19."""

SLIPS = """
19.a 6: That is 48 layers over 8. The 40 layers with a window keep something, too: 1,024 tokens each.
19.a 32: That is the factor of one layer with a window. The 8 others keep everything.
19.a 1.2: That is 48 over 40. The 8 layers that see everything keep 32 times as much as one with a window.
19.b 512: Keys *and* values: a token takes 2 × 2 × 256 elements of 2 bytes in such a layer, 2 KiB.
19.b 2048: Keys *and* values, of 2 heads each: a token takes 2 KiB, not 1.
19.b 256: An element of the state has 4 bytes, one of keys and values 2: 2 MiB over 2 KiB.
19.b 1: A state has 2 MiB, and a token 2 KiB.
"""

QUIZ = """
Qwen3-Next serves many chats of 100 tokens each. What takes most of their memory?
- Keys and values => 100 tokens take 100 × 24 KiB, 2.3 MiB.
+ States => A chat's states take 74 MiB, after one token as after 3,000.
- Both take about the same => They do at about 3,000 tokens. At 100, they don't.

Blocks of 16, a window of 64 tokens. Of a prompt, full attention still has the first 20 blocks, the window the first 10,
and there are checkpoints after 4, 12 and 20 blocks. How many tokens are a hit?
- 320 => There is a checkpoint after 20 blocks, but the window has lost the blocks before it.
- 160 => The window could continue after 10 blocks, but there is no checkpoint.
+ 64 => After 4 blocks, full attention has all four, the window its last 63 tokens, and there is a checkpoint.
- 192 => There is a checkpoint after 12 blocks, but of blocks 8 to 11 the window has 8 and 9.

A sequence with states is preempted after 500 tokens, and its blocks stay in the prefix cache. Where does it continue?
- At token 500: its blocks are all there. => The state after 500 tokens is gone with its slot, unless it was copied.
+ After its last checkpoint that is still there, or at the beginning.
  A state can't be cut, nor computed from keys and values. All later tokens are computed again.
- After the last full block, at 496. => That's the rule of lesson 11. It holds only if there is a checkpoint.
"""
