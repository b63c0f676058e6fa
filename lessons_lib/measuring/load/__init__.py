"""Lesson 14: a server under requests that do not wait for it.

Read in this order: `records` (a request seen by a client), `goodput`, `knee` (the most load that a server can take).
`measuring.simulated_server` runs on a simulated clock. To measure a real server, use `guidellm` or `vllm bench serve`.
"""
