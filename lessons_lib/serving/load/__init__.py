"""Lesson 14: load. How a server behaves under requests that do not wait for it.

Read in this order: `records` (what a client sees of a request), `client` (an open loop, over HTTP), `goodput`, `knee`
(how much a server can take), `simulated` (a server on a simulated clock). To measure a real server, use `guidellm` or
`vllm bench serve`.
"""
