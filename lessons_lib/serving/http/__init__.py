"""The server: an OpenAI-compatible HTTP API in front of an AsyncEngine.

Read `protocol` (what a request may say), `completions` and `chat` (what is answered), `sse` (how tokens stream out),
`errors`, and `app`, which puts them together.
"""
