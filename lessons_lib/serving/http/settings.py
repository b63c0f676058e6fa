"""Lesson 14: the settings of a server. Each is checked before a model is loaded."""

import ipaddress
import re
from dataclasses import dataclass, field, replace
from typing import Any

from lessons_lib.models.validate import check_fields, checked, must, number, whole
from lessons_lib.serving.messages import STEP_TIMEOUT

LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
BODY_BYTES, BYTES_PER_TOKEN, BYTES_PER_VALUE = 2**18, 16, 8
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
COUNT = (whole, "at least 1", 1)
SECONDS = (number, "a number of seconds above 0", lambda value: value > 0)


def valid_root_path(name: str, value: Any) -> str:
    is_path = not value or re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", value) is not None
    must(is_path, name, value, "a path such as '/llm', without a final '/'")
    return str(value)


def sendable_keys(name: str, value: Any) -> tuple[str, ...]:
    # HTTP strips spaces around a header's value and allows no control characters in it.
    if not all(re.fullmatch(r"[\x21-\x7e]+", key) for key in value):
        raise ValueError(
            "an API key is empty, or has a space or a character outside ASCII, which no client can send. "
            "`python -c 'import secrets; print(secrets.token_urlsafe(32))'` makes a good one."
        )
    return tuple(value)


@dataclass(frozen=True)
class ServerSettings:
    """The settings of a server, without those of its engine. `python -m lessons_lib.serving --help` describes all.

    Attributes:
        model_name: clients call the model so: `model` in requests and answers.
        api_keys: a request needs one of them; if there is none, every request is served.
        allowed_hosts: names in `Host` headers that are served, without port; if empty, all. None: the loopback names if
            the server listens on a loopback address only, otherwise all.
        max_body_bytes: if None, as the model's context needs; see `for_context`.
    """

    model_name: str
    api_keys: tuple[str, ...] = field(default=(), repr=False, metadata={"check": (sendable_keys, ())})
    host: str = "127.0.0.1"
    port: int = checked(8000, whole, "from 0 to 65535, where 0 is any free port", 0, 2**16 - 1)
    allowed_hosts: tuple[str, ...] | None = None
    root_path: str = checked("", valid_root_path)
    max_requests: int = checked(256, *COUNT)
    max_prompt_tokens: int = checked(2**17, *COUNT)
    max_body_bytes: int | None = checked(None, *COUNT)
    max_header_bytes: int = checked(2**16, *COUNT)
    receive_timeout: float = checked(60.0, *SECONDS)
    stall_timeout: float = checked(60.0, *SECONDS)
    step_timeout: float | None = checked(
        STEP_TIMEOUT, number, "a number of seconds above 0, or None for no limit", lambda value: value > 0
    )
    keep_alive_interval: float = checked(15.0, *SECONDS)
    max_responses: int = checked(1000, *COUNT)
    response_ttl: float = checked(3600.0, *SECONDS)
    shutdown_timeout: float = checked(30.0, number, "0 or more seconds", lambda value: value >= 0)
    log_level: str = "info"
    access_log: bool = True

    def __post_init__(self) -> None:
        check_fields(self)

    def for_context(self, max_model_len: int | None) -> "ServerSettings":
        """These settings for a model, with its number for `max_body_bytes`.

        Nothing else runs in the event loop while JSON is read and checked, so a body has room for a prompt and little
        more: BODY_BYTES, of which a schema takes most, and BYTES_PER_TOKEN of prompts.
        """
        num_tokens = min(self.max_prompt_tokens, max_model_len or self.max_prompt_tokens)
        return replace(self, max_body_bytes=self.max_body_bytes or BODY_BYTES + BYTES_PER_TOKEN * num_tokens)

    @property
    def max_values(self) -> int:
        """The most values in the JSON of a body: as `max_body_bytes`, for a prompt and some more."""
        return max(BODY_BYTES, self.max_body_bytes or 0) // BYTES_PER_VALUE

    @property
    def is_local(self) -> bool:
        """True if only programs on this machine can connect."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """The names that a `Host` header may have; all if there is none."""
        if self.allowed_hosts is not None:
            return self.allowed_hosts
        return tuple(dict.fromkeys((*LOOPBACK_NAMES, self.host))) if self.is_local else ()
