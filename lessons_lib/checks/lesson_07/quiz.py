"""Questions at the end of lesson 07."""

QUIZ = """
You launch `add_kernel` on 1,000 elements with BLOCK = 256. How many programs do you need, and how many elements does
the last one add?
- 3 programs; the last adds 256. => 3 × 256 = 768. No program would add elements 768 to 999.
- 4 programs; the last adds 256. => Its tile covers offsets 768 to 1,023. The mask leaves out those from 1,000 on.
+ 4 programs; the last adds 232. => 1,000 − 3 × 256 = 232. The other 24 elements of its tile are masked.
- 1,000 programs; the last adds 1.
  That's CUDA's view, with one thread per element. A Triton program has a tile of them.

A kernel without a mask reads past the end of its input. What happens on a GPU?
- Triton raises an IndexError.
  Nothing checks addresses. Only our recorder does, because it runs the kernel in Python.
+ It reads whatever is stored there, or the whole process ends with an illegal memory access, sometimes much later.
  If the address belongs to the process, the read succeeds without any error.
- It reads zeros. => That would take a check per element. `other=0.0` gives zeros, and only where a mask is False.
- The compiler rejects it. => The length is known when the kernel is launched, not when it is compiled.

In `attend_blocks`, the loads of keys and values have a mask and `other=0.0`. Why do we still set the score of a masked
key to minus infinity?
+ Because a key of zeros has a score of 0, and exp(0 − maximum) is a positive weight that `row_sum` would include.
  The value of zeros adds nothing to `acc`, but the denominator would be too large and the result too small.
- Because what the mask hides might be NaN. => With `other=0.0` it is 0. Without `other` it could be anything.
- Because otherwise the address would be checked. => Nothing checks addresses, and a masked address isn't accessed.
- There's no need to; the weight of a key of zeros is 0.
  Its score is 0. Its weight is exp(0 − maximum), which may be larger than that of many real keys.

In the interpreter, a kernel gave the right results in all tests. What does that tell you about it on a GPU?
- It will run there, since the source is the same.
  The compiler may reject what Python accepts: a variable that a loop turns from the integer `0` into a float, or an
  `if` on a tile.
- How fast it is, if you divide the time by the number of programs.
  The interpreter runs Python, one program after another. Its time says nothing about a GPU's.
+ In these tests, its addresses and its arithmetic are right, up to rounding. Whether it compiles, how a GPU rounds, and
how fast it is must be tested separately.
  Tests show the first, and the compiler tells you the second, even without a GPU. The third takes a GPU.
- Nothing. The interpreter computes something else.
  It does the same loads, stores and arithmetic, up to rounding. A wrong stride is wrong in both.
"""
