"""Lesson 14: the page at `/`. One HTML file without a library, which works offline."""

import base64
import functools
import hashlib
import html
import re
from importlib import resources

from fastapi.responses import Response

from lessons_lib.serving.http.settings import ServerSettings


def page(settings: ServerSettings) -> Response:
    """The page of a server, with a policy that lets it load and ask nothing but this server."""
    text, policy = source()
    for name, value in {"model": settings.model_name, "needs_key": "yes" if settings.api_keys else "no"}.items():
        text = text.replace("{{" + name + "}}", html.escape(value))
    headers = {"content-security-policy": policy, "cache-control": "no-store"}
    return Response(text, media_type="text/html", headers=headers)


@functools.cache
def source() -> tuple[str, str]:
    """(the file's text, its Content-Security-Policy): a browser runs the file's own script and no other."""
    text = resources.files(__package__).joinpath("page", "index.html").read_text(encoding="utf-8")
    script, style = (base64_sha256(re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)[0]) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def base64_sha256(text: str) -> str:
    """As Content-Security-Policy writes a hash."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
