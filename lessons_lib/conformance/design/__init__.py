"""The design task of lesson 17: serve one workload on one machine, in a simulation.

Read `machine` first: what is fixed, and what a design chooses. `workload` has the requests and what each was promised,
`cluster` serves them, `grading` compares designs on seeds that the learner doesn't see, and `examples` has a good one.
"""
