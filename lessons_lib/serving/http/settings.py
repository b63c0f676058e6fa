"""Lesson 14: what a server can be told. Each value is checked before a model is loaded."""

import ipaddress
import re
from dataclasses import dataclass, field, replace

from lessons_lib.serving.watchdog import STEP_TIMEOUT, check_step_timeout

LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
BODY_BYTES, BYTES_PER_TOKEN, BYTES_PER_VALUE = 2**18, 16, 8
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServerSettings:
    """Everything about a server that isn't about its engine.

    Attributes:
        model_name: what clients call the model: `model` in requests and answers.
        api_keys: a request needs one of them; if there is none, every request is served.
        host, port: where the server listens; port 0 is any free one.
        allowed_hosts: the names in `Host` headers that are served, without port; if empty, all. None: the loopback
            names if the server listens on a loopback address only, otherwise all.
        root_path: the path under which a proxy publishes this server, such as "/llm".
        max_requests: the most requests that wait or run at a time; one more gets status 429.
        max_prompt_tokens: the most tokens of all their prompts together.
        max_body_bytes: the largest body of a request. None: what the model's context needs; see `for_context`.
        max_header_bytes: the largest head of a request: its first line and its headers.
        receive_timeout: seconds that a client has for sending a request, from its first byte to its last.
        stall_timeout: seconds that a client may leave its answer unread before its connection is closed.
        step_timeout: seconds after which a step of the engine counts as hung; None for no limit. See StepWatch.
        shutdown_timeout: seconds that running requests have to finish once the server has been told to end.
        log_level: one of LOG_LEVELS.
        access_log: whether a line is logged for each request.

    Raises:
        ValueError: a value makes no sense.
    """

    model_name: str
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: tuple[str, ...] | None = None
    root_path: str = ""
    max_requests: int = 256
    max_prompt_tokens: int = 2**17
    max_body_bytes: int | None = None
    max_header_bytes: int = 2**16
    receive_timeout: float = 60.0
    stall_timeout: float = 60.0
    step_timeout: float | None = STEP_TIMEOUT
    shutdown_timeout: float = 30.0
    log_level: str = "info"
    access_log: bool = True

    def __post_init__(self) -> None:
        if not self.model_name:
            raise ValueError("model_name is empty; clients need a name for the model, such as 'lessons'.")
        for name in ("max_requests", "max_prompt_tokens", "max_body_bytes", "max_header_bytes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1.")
        for name in ("receive_timeout", "stall_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a number of seconds above 0.")
        check_step_timeout(self.step_timeout)
        if not self.shutdown_timeout >= 0:
            raise ValueError(f"shutdown_timeout is {self.shutdown_timeout}; it must be 0 or more seconds.")
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port is {self.port}; it must be from 0 to 65535, where 0 is any free port.")
        if self.root_path and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", self.root_path):
            raise ValueError(f"root_path is {self.root_path!r}; it must look like '/llm': no '/' at its end.")
        if self.log_level not in LOG_LEVELS:
            raise ValueError(f"log_level is {self.log_level!r}; it must be one of {', '.join(LOG_LEVELS)}.")
        for key in self.api_keys:
            # HTTP strips spaces around a header's value and allows no control characters in it.
            if not re.fullmatch(r"[\x21-\x7e]+", key):
                raise ValueError(
                    "an API key is empty, or has a space or a character outside ASCII, which no client can send. "
                    "`python -c 'import secrets; print(secrets.token_urlsafe(32))'` makes a good one."
                )

    def for_context(self, max_model_len: int | None) -> "ServerSettings":
        """These settings for a model, with its number for `max_body_bytes`.

        Nothing else runs in the event loop while JSON is read and checked, so a body has room for a prompt and little
        more: BODY_BYTES, of which a schema takes most, and BYTES_PER_TOKEN of prompts.
        """
        num_tokens = min(self.max_prompt_tokens, max_model_len or self.max_prompt_tokens)
        return replace(self, max_body_bytes=self.max_body_bytes or BODY_BYTES + BYTES_PER_TOKEN * num_tokens)

    @property
    def max_values(self) -> int:
        """The most values that the JSON of a body may have: as `max_body_bytes`, what a prompt needs, and some more."""
        return max(BODY_BYTES, self.max_body_bytes or 0) // BYTES_PER_VALUE

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """The names that a `Host` header may have; all if there is none."""
        if self.allowed_hosts is not None:
            return self.allowed_hosts
        return tuple(dict.fromkeys((*LOOPBACK_NAMES, self.host))) if self.is_local else ()
