"""What stands in front of the app: hosts, origins, keys, bodies, request ids. No server: each guard is called as uvicorn
calls it."""

import asyncio
import hmac
import json
import logging
from collections import Counter
from types import SimpleNamespace

import pytest

from lessons_lib.serving.http import security
from lessons_lib.serving.http.observability import AccessLog
from lessons_lib.serving.http.security import ApiKeys, BodyLimit, HostCheck, SafeHeaders
from lessons_lib.serving.http.settings import ServerSettings

LOCAL = ServerSettings("m").known_hosts


class App:
    """Answers 200, and keeps what it has seen."""

    def __init__(self, fails=False):
        self.bodies, self.scopes, self.fails = [], [], fails

    async def __call__(self, scope, receive, send):
        if self.fails:
            raise ZeroDivisionError
        self.scopes.append(scope)
        self.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-request-id", b"its own")]})
        await send({"type": "http.response.body", "body": b"ok"})


def ask(app, *chunks, path="/v1/completions", headers=(), root_path="", leaves=False):
    """(status, headers, body) of one request."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.disconnect"} if leaves else {"type": "http.request", "body": b""})
    sent = []
    scope = {"type": "http", "method": "POST", "path": path, "root_path": root_path, "client": ("127.0.0.1", 5)}
    scope["headers"] = [(name.encode(), value.encode("latin-1")) for name, value in headers]

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    if not sent:
        return None
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(each.get("body", b"") for each in sent)


def status(app, *chunks, **request):
    return ask(app, *chunks, **request)[0]


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000"])
def test_the_names_of_this_machine_are_served(host):
    assert status(HostCheck(App(), LOCAL), headers=[("host", host)]) == 200


# The first is what DNS rebinding leads to.
OTHERS = ["evil.example:8000", "127.0.0.1.evil.example", "127.0.0.1:8000:9", "localhost@evil.example", ""]


@pytest.mark.parametrize("hosts", [*([host] for host in OTHERS), [], ["localhost", "localhost"]], ids=str)
def test_other_names_or_two_or_none_are_refused(hosts):
    assert status(HostCheck(App(), LOCAL), headers=[("host", host) for host in hosts]) == 403


def test_a_server_for_others_takes_any_name_unless_told():
    assert status(HostCheck(App(), ServerSettings("m", host="0.0.0.0").known_hosts), headers=[("host", "a.b")]) == 200
    settings = ServerSettings("m", host="0.0.0.0", allowed_hosts=("llm.example",))
    assert status(HostCheck(App(), settings.known_hosts), headers=[("host", "llm.example:80")]) == 200
    assert status(HostCheck(App(), settings.known_hosts), headers=[("host", "a.b")]) == 403


@pytest.mark.parametrize(
    "origin, expected",
    [("http://127.0.0.1:8000", 200), ("https://evil.example", 403), ("null", 403), ("http://127.0.0.1:9", 403)],
)
def test_pages_of_other_sites_are_refused(origin, expected):
    app = App()
    assert status(HostCheck(app, LOCAL), headers=[("host", "127.0.0.1:8000"), ("origin", origin)]) == expected
    assert len(app.scopes) == (expected == 200)


@pytest.mark.parametrize("value", ["Bearer first", "bearer second", "Bearer  first "])
def test_right_keys(value):
    assert status(ApiKeys(App(), ["first", "second"]), headers=[("authorization", value)]) == 200


WRONG_KEYS = ["Bearer firs", "Bearer firstsecond", "Basic first", "first", "", "Bearer \xff\xfe"]


@pytest.mark.parametrize("values", [*([key] for key in WRONG_KEYS), [], ["Bearer first", "Bearer second"]], ids=str)
def test_wrong_keys(values):
    found, head, body = ask(ApiKeys(App(), ["first", "second"]), headers=[("authorization", each) for each in values])
    assert found == 401 and head[b"www-authenticate"].startswith(b"Bearer")
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
    assert "first" not in error["message"]


def test_every_key_is_compared_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(
        security.hmac, "compare_digest", lambda a, b, real=hmac.compare_digest: compared.append((a, b)) or real(a, b)
    )
    assert status(ApiKeys(App(), ["a", "b", "c"]), headers=[("authorization", "Bearer a")]) == 200
    assert len(compared) == 3
    assert all(isinstance(each, bytes) and len(each) == 32 for pair in compared for each in pair)


@pytest.mark.parametrize("path", ["/health", "/", "/metrics", "/cockpit", "/v1/models", "//", "/health/"])
def test_health_and_the_page_need_no_key(path):
    expected = 200 if path in ("/health", "/") else 401
    assert status(ApiKeys(App(), ["k"]), path=path) == expected
    assert status(ApiKeys(App(), ["k"]), path="/llm" + path, root_path="/llm") == expected
    assert status(ApiKeys(App(), []), path=path) == 200


def test_a_body_within_the_limit_arrives_whole():
    app = App()
    assert status(BodyLimit(app, 6), b"abc", b"def", headers=[("content-length", "6")]) == 200
    assert status(BodyLimit(app, 100), "ä".encode()[:1], "ä".encode()[1:]) == 200  # a character may be cut
    assert app.bodies == [b"abcdef", "ä".encode()]


@pytest.mark.parametrize("length", ["7", "99999999999999999999", "-1", "x"])
def test_a_body_that_is_announced_too_large_is_not_read(length):
    app = App()
    found, _, body = ask(BodyLimit(app, 6), headers=[("content-length", length)])
    assert found == 413 and "6 bytes" in json.loads(body)["error"]["message"] and not app.scopes
    assert status(BodyLimit(app, 6), b"abcd", b"efg") == 413 and not app.scopes, "a chunked body is counted"
    assert ask(BodyLimit(app, 6), b"abc", leaves=True) is None and not app.scopes


@pytest.mark.parametrize("encoding, expected", [("gzip", 415), ("br, gzip", 415), ("identity", 200), ("Identity", 200)])
def test_bodies_are_not_decompressed(encoding, expected):
    app = App()
    found, _, body = ask(BodyLimit(app, 100), b"{}", headers=[("content-encoding", encoding)])
    assert found == expected and len(app.scopes) == (expected == 200)
    assert expected == 200 or f"content-encoding is '{encoding}', which isn't offered" in body.decode()


@pytest.mark.parametrize("body", [b"\xff", b'{"prompt": "\xc3"}', b"\xed\xa0\x80"])
def test_bodies_that_are_not_utf8(body):
    app = App()
    assert status(BodyLimit(app, 100), body) == 400 and not app.scopes


def test_safe_headers_leave_the_apps_own():
    _, head, _ = ask(SafeHeaders(App()))
    assert head[b"x-frame-options"] == b"DENY" and head[b"x-request-id"] == b"its own"


def access_log(app):
    return AccessLog(app, SimpleNamespace(answers=Counter()), frozenset({"/v1/completions"}))


@pytest.mark.parametrize("sent", ["abc-1.2:3_x", "a" * 128])
def test_a_harmless_request_id_is_kept(sent):
    app = App()
    _, head, _ = ask(access_log(app), headers=[("x-request-id", sent)])
    assert head[b"x-request-id"] == sent.encode()
    assert (b"x-request-id", sent.encode()) in app.scopes[0]["headers"]


@pytest.mark.parametrize("sent", ["a\r\nset-cookie: b", "a b", "", "a" * 129, "ä", "a\nb", "\x00", "a;b"])
def test_another_request_id_is_replaced(sent):
    app = App()
    _, head, _ = ask(access_log(app), headers=[("x-request-id", sent)])
    (seen,) = [value for name, value in app.scopes[0]["headers"] if name == b"x-request-id"]
    assert head[b"x-request-id"] == seen != sent.encode("latin-1")
    assert len(seen) == 32


def test_a_log_line_a_request_without_its_prompt(caplog):
    caplog.set_level(logging.INFO, "lessons_lib.access")
    log = access_log(App())
    ask(log, b"a secret prompt", path="/x\n2026 forged line\x1b[31m", headers=[("authorization", "Bearer key")])
    ask(log, path="/v1/completions")
    first, second = (record.getMessage() for record in caplog.records)
    assert "status=200" in first and "complete=yes" in first and "bytes=2" in first
    assert "\n" not in first and "\x1b" not in first
    assert "secret" not in first and "key" not in first
    assert 'path="/v1/completions"' in second
    assert log.metrics.answers == {("other", 200): 1, ("/v1/completions", 200): 1}


def test_a_failing_app_counts_as_500(caplog):
    caplog.set_level(logging.INFO, "lessons_lib.access")
    log = access_log(App(fails=True))
    with pytest.raises(ZeroDivisionError):
        ask(log)
    assert log.metrics.answers == {("/v1/completions", 500): 1}
    assert "status=500" in caplog.text
