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
    fields = {"{{model}}": settings.model_name, "{{needs_key}}": "yes" if settings.api_keys else "no"}
    for name, value in fields.items():
        text = text.replace(name, html.escape(value, quote=True))
    headers = {"content-security-policy": policy, "cache-control": "no-store"}
    return Response(text, media_type="text/html", headers=headers)


@functools.cache
def source() -> tuple[str, str]:
    """(the file's text, its Content-Security-Policy): a browser runs the file's own script and no other."""
    text = resources.files(__package__).joinpath("page").joinpath("index.html").read_text(encoding="utf-8")
    allowed = {"script": "'none'", "style": "'none'"}
    for kind in allowed:
        bodies = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        allowed[kind] = " ".join(f"'sha256-{base64_sha256(body)}'" for body in bodies)
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def base64_sha256(text: str) -> str:
    """As Content-Security-Policy writes a hash."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
