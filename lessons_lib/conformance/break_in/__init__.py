"""The break-in of lesson 17: twelve engines with one mistake each, which the learner's own tests must find.

Read `engine` first: what a test may call. `mutants` has the mistakes and `grading` tries tests on all of them; both
give the solution away. `examples` has tests that find all twelve.
"""
