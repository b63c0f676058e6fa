"""Pictures: pure functions of recorded state. Recorded state goes in, a `Picture` with alternative text comes out.

drawing is the paper and the palette; the other folders are families of pictures. stepper plays through a list of them.
"""
