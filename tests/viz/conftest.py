import pytest

from lessons_lib.viz.drawing.svg import Drawing
from tests.support.drawn_colors import too_faint

MOST = 2  # pictures of a test that are looked at: the others are like them


@pytest.fixture(autouse=True)
def enough_contrast(monkeypatch):
    """Every picture that a test of this folder draws has enough contrast, in light and in dark."""
    shown = {}
    picture = Drawing.picture

    def remembered(self, alt):
        made = picture(self, alt)
        if len(shown) < MOST:
            shown[made.alt] = made.svg
        return made

    monkeypatch.setattr(Drawing, "picture", remembered)
    yield
    found = {each for svg in shown.values() for each in too_faint(svg)}
    assert not found, "\n".join(f"{each.contrast:.2f} {each}" for each in found)
