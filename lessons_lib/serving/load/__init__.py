"""Lesson 14: load. How a server behaves under requests that do not wait for it.

Read in this order: `records` (what is known of a request), `arrivals` and `shapes` (what is offered, and when),
`client` (the open and the closed loop), `http_client` (one request over HTTP), `report` (percentiles), `goodput`,
`knee` (how much a server can take), `simulated` (a server on a simulated clock). `python -m lessons_lib.serving.load
--help` measures a real one.
"""
