"""python -m tools.site.server_page: writes the site's page of the server: what it promises, its limits, what it does
under overload, and what it doesn't do.

Every number and every name comes from the code that acts on it. The page is committed, since the site is built without
that code's packages; a test compares the two.
"""

import json
from dataclasses import fields
from pathlib import Path

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.grammar_process import COMPILE_SECONDS, MASK_SECONDS
from lessons_lib.engine.input_processor import MAX_NAME_CHARACTERS, MAX_TIER
from lessons_lib.engine.sampling_params import MAX_BIAS, MAX_N, MAX_PENALTY, MAX_STOP_CHARACTERS, MAX_VALUES
from lessons_lib.engine.structured_outputs import MAX_CHARACTERS, MAX_CHOICES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_VALUES
from lessons_lib.models.prompts import MAX_CHARACTERS_PER_TOKEN
from lessons_lib.serving.admission import LONGEST_WAIT
from lessons_lib.serving.http.connections import PROBE_SECONDS
from lessons_lib.serving.http.errors import OTHER_PATHS
from lessons_lib.serving.http.protocol import (
    MAX_COMPLETIONS,
    MAX_MESSAGES,
    MAX_PROMPTS,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
)
from lessons_lib.serving.http.security import MAX_OBJECTS
from lessons_lib.serving.http.server import BACKLOG, KEEP_ALIVE
from lessons_lib.serving.http.settings import BODY_BYTES, BYTES_PER_TOKEN, BYTES_PER_VALUE, ServerSettings

FILE = Path(__file__).with_name("the_server.md")
Row = tuple[str, str, str]  # what, how much, what happens beyond it


def default_of(owner: type, name: str) -> int | float:
    """The default of a dataclass's field, which is an option of the command line."""
    value: int | float = next(field.default for field in fields(owner) if field.name == name)  # type: ignore[assignment]
    return value


def option(owner: type, name: str, unit: str) -> str:
    """A limit that the command line sets."""
    return f"{number(default_of(owner, name))} {unit} (`--{name.replace('_', '-')}`)"


def number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def server_limits() -> list[Row]:
    """Of the server and of each connection."""
    closed = "the connection is closed"
    own = {
        "max_requests": ("requests, waiting or running", "requests", "429, with `Retry-After`"),
        "max_prompt_tokens": ("tokens of all their prompts", "tokens", "429; 400 if one prompt alone has more"),
        "max_header_bytes": ("head of a request, trailers included", "bytes", "431"),
        "receive_timeout": ("time for sending a request", "seconds", closed),
        "stall_timeout": ("time for which an answer stays unread", "seconds", f"{closed}, its request aborted"),
        "step_timeout": ("a step of the engine", "seconds", "the engine counts as hung, and is ended"),
        "shutdown_timeout": ("time for open requests when the server ends", "seconds", "they are aborted"),
    }
    rows = [(what, option(ServerSettings, name, unit), then) for name, (what, unit, then) in own.items()]
    first, others = PROBE_SECONDS
    body = f"{number(BODY_BYTES)} bytes, and {BYTES_PER_TOKEN} for each token of the context (`--max-body-bytes`)"
    return [
        ("body of a request", body, "413"),
        *rows,
        ("time for which a connection stays unused", f"{KEEP_ALIVE} seconds", closed),
        ("connections that wait to be accepted", number(BACKLOG), "the system refuses them"),
        ("signs that a client has gone", f"looked for after {first:g} s, then every {others:g} s", "it is aborted"),
    ]


def request_limits() -> list[Row]:
    """Of one request."""
    more = BYTES_PER_TOKEN // BYTES_PER_VALUE
    values = [(f"values of `{name}`", number(most)) for name, most in MAX_VALUES.items()]
    rows = [
        ("characters of a prompt", f"{number(MAX_CHARACTERS_PER_TOKEN)} for each token of the context"),
        ("prompts of `/v1/completions`", number(MAX_PROMPTS)),
        ("messages of a chat", number(MAX_MESSAGES)),
        ("completions of a prompt (`n`)", number(MAX_N)),
        ("completions of a request", number(MAX_COMPLETIONS)),
        ("values in a body", f"{number(BODY_BYTES // BYTES_PER_VALUE)}, and {more} for each token of the context"),
        ("texts in a body, names included", "as many"),
        ("objects in a body", number(MAX_OBJECTS)),
        (
            "`structured_outputs`",
            ", ".join(f"{number(most)} characters of a {kind}" for kind, most in MAX_CHARACTERS.items()),
        ),
        ("strings of a `choice`", number(MAX_CHOICES)),
        ("a JSON schema", f"{number(MAX_SCHEMA_VALUES)} values, {MAX_SCHEMA_DEPTH} levels"),
        (
            "compiling a grammar, and finding its next tokens",
            f"{COMPILE_SECONDS:g} s, and {MASK_SECONDS:g} s, of CPU time",
        ),
        *values,
        ("one text of `stop`, `bad_words` or `choice`", f"{number(MAX_STOP_CHARACTERS)} characters"),
        ("`cache_salt`", f"{number(MAX_NAME_CHARACTERS)} characters"),
        ("`logprobs`, `top_logprobs`, `prompt_logprobs`", option(EngineConfig, "max_logprobs", "tokens")),
        ("a value of `logit_bias`", f"-{number(MAX_BIAS)} to {number(MAX_BIAS)}"),
        ("`presence_penalty`, `frequency_penalty`", f"-{number(MAX_PENALTY)} to {number(MAX_PENALTY)}"),
        ("`priority`", f"0, the best, to {number(MAX_TIER)}"),
    ]
    context = ("prompt and completion together", "the model's context, or `--max-model-len`")
    return [(*context, "400, `context_length_exceeded`"), *((*row, "400") for row in rows)]


PROMISES = """
- `/v1/completions` and `/v1/chat/completions` speak OpenAI's API, with streams, log-probabilities and structured
  outputs. A field that isn't known, or that the server can't honor, is refused by name. It is never ignored.
- With `seed`, or at temperature 0, an answer doesn't depend on which other requests run beside it.
- A refused request has changed nothing. An error is OpenAI's JSON, and names the value, the limit and what to do.
- A client's text is text: special tokens in it are no control tokens. Only the chat template writes those, or a
  client that sends a prompt of token ids.
- Rules that contradict each other are refused, as far as that shows before the run. If they leave no token later, the
  completion ends with the text so far, and finish reason `stop`.
- When a client leaves, its request leaves the engine, and its blocks are free again.
"""
OVERLOAD = f"""
It refuses at once what it can't take on: status 429, and in `Retry-After` an estimate of when there is room, from how
fast requests have ended lately ({LONGEST_WAIT:.0f} seconds at most). What it has accepted, it serves. If the KV cache
is full, running sequences are preempted, and go on later with the same tokens. A server that ends answers 503 to new
requests, and finishes the others.
"""
NOT_DONE = """
- **No quotas.** Every key may use the whole server. Put a gateway in front of it if clients have to share fairly.
- **No TLS.** Let a proxy such as nginx or Caddy do it, and give its path with `--root-path`. Turn its buffering off.
- **No tools, images, audio, embeddings, or stored conversations.** The model reads text and writes text.
- **No protection against a client with a key** that asks for much: it gets what fits into the limits above.
"""


def server_page() -> str:
    """The page, in MyST Markdown."""
    paths: dict[str, list[str]] = {}
    for path, advice in OTHER_PATHS.items():
        paths.setdefault(advice, []).append(f"`{path}`")
    parts = [
        "# The server: promises and limits",
        "`make serve` starts it. The numbers are the defaults, as the code has them.",
        f"## What it promises\n{PROMISES}",
        "## Limits of the server",
        table(("what", "how much", "beyond it"), server_limits()),
        "## Limits of a request",
        table(("what", "how much", "beyond it"), request_limits()),
        f"## Under overload\n{OVERLOAD}",
        f"## What it doesn't do\n{NOT_DONE}",
        "## Fields that it refuses",
        "Values that ask for nothing are accepted: null, and those in the third column.",
        table(("field", "why it is refused", "accepted"), refused_fields()),
        "## Paths that it doesn't have",
        table(("path", "the way out"), [(", ".join(each), advice) for advice, each in paths.items()]),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def refused_fields() -> list[Row]:
    """Fields of both kinds of completion, and of messages."""
    names = CompletionRequest.not_offered | ChatRequest.not_offered
    names |= {f"{name}` of a message": why for name, why in ChatMessage.not_offered.items()}
    return [
        (f"`{name}" + "`" * ("`" not in name), why, ", ".join(f"`{json.dumps(value)}`" for value in neutral))
        for name, (why, *neutral) in names.items()
    ]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]] | list[Row]) -> str:
    """A table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    FILE.write_text(server_page(), encoding="utf-8")
