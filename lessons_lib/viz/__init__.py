"""Pictures: pure functions of recorded state. Recorded state goes in, a `Picture` with alternative text comes out.

drawing is the paper and the palette; the other folders are families of pictures. stepper puts a list of them into one
output, and player is what plays them there, in the page, without a kernel.
"""
