"""The page: a file without anything from elsewhere, and what a user sees of it."""

import re
from html.parser import HTMLParser

import pytest
from live_server import LiveServer, slow, wait_until

from lessons_lib.serving.http.page import base64_sha256, page, source
from lessons_lib.serving.http.settings import ServerSettings


def test_nothing_comes_from_elsewhere():
    text, policy = source()
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", text)
    assert not re.search(r"\b(on\w+|style)=\"", text)  # which the policy forbids
    assert "unsafe" not in policy and "*" not in policy
    for kind in ("script", "style"):
        (body,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        assert f"{kind}-src 'sha256-{base64_sha256(body)}'" in policy
    assert base64_sha256("abc") == "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy


def test_a_models_name_cannot_change_the_page():
    class Tags(HTMLParser):
        def __init__(self):
            super().__init__()
            self.tags, self.body = [], {}

        def handle_starttag(self, tag, attributes):
            self.tags.append(tag)
            if tag == "body":
                self.body = dict(attributes)

    def parsed(name, keys=()):
        tags = Tags()
        tags.feed(page(ServerSettings(name, api_keys=keys)).body.decode())
        return tags

    name = '"><script>alert(1)</script>'
    assert parsed(name).tags == parsed("m").tags
    assert parsed(name).body["data-model"] == name
    assert parsed("m").body["data-needs-key"] == "no" and parsed("m", ("k",)).body["data-needs-key"] == "yes"


@pytest.mark.browser
def test_the_page_streams_stops_and_shows_the_engine(chromium):
    with LiveServer(api_keys=("secret",)) as live:
        tab = chromium.new_page(viewport={"width": 390, "height": 844})
        problems = []
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.goto(live.url)
        tab.wait_for_selector("#key")
        wait_until(lambda: "needs an API key" in tab.inner_text("#health"))
        tab.fill("#key", "secret")
        tab.wait_for_selector("#health.ok")
        assert tab.evaluate("document.documentElement.scrollWidth") == 390  # nothing sticks out

        tab.fill("#count", "3")
        tab.fill("#max", "5")
        tab.focus("#prompt")
        tab.keyboard.press("Control+Enter")
        wait_until(lambda: tab.locator(".stream:not(.running)").count() == 3)
        states = tab.locator(".stream .state").all_inner_texts()
        assert all(state.startswith("done (length): 5 tokens") for state in states)
        texts = tab.locator(".stream .text").all_inner_texts()
        assert all(text.startswith("Once upon a time") and len(text) > 20 for text in texts)

        forward, live.engine.model.forward = live.engine.model.forward, slow(live.engine.model.forward)
        tab.fill("#max", "400")
        tab.click("text=Send")
        wait_until(lambda: tab.inner_text("#running") == "3")
        assert not tab.inner_text("#blocks-text").startswith("0 ")
        assert tab.locator("#blocks i.used").count() > 0
        tab.keyboard.press("Escape")
        wait_until(lambda: tab.locator(".stream.running").count() == 0)
        assert tab.inner_text(".stream .state").startswith("stopped")
        wait_until(live.is_idle)
        wait_until(lambda: tab.inner_text("#running") == "0")
        live.engine.model.forward = forward
        assert problems == []
        tab.close()
