"""Lesson 14: the server, an OpenAI-compatible HTTP API in front of an AsyncEngine.

Read in this order: protocol (the fields of a request), served_model (text and tokens), generation, completions and chat
(the answers), logprobs, sse (how tokens stream out), errors; tools (calls of functions), response_protocol and
responses (OpenAI's newer form of chats); then what surrounds the API: settings, security,
connections, observability, page, and app, which puts all together; then the process: engine_recipe, arguments, server,
server_process.

chat_events, leaving and small_app are the same ideas in small: lesson 14's exercises, and a server made of them, which
server_thread runs.
"""
