"""The player's JavaScript without a browser: `node --test`, on what Python has recorded."""

import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lessons_lib.viz.drawing.svg import Drawing
from lessons_lib.viz.player.frames import frame_of
from lessons_lib.viz.player.script import bundled
from lessons_lib.viz.stepper import PLAYER, Stepper

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node isn't installed")


ID = re.compile(r"\b(hatch|arrow)-[0-9a-f]{8}\b")  # of a pattern: another one in each recording


def draw(index):
    rng, drawing = random.Random(index), Drawing(height=80)
    for _ in range(rng.randrange(6)):
        drawing.cell(
            20 * rng.randrange(3), 20, 18, 18, rng.choice(("#009E73", "#0072B2")), hatched=rng.choice((0, 0.5))
        )
    drawing.text(20, 60, rng.choice(("<one>", "two ± three")))
    return drawing.picture("cells")


def run_in_node(tests, environment):
    command = ["node", "--test", str(Path(__file__).with_name(tests))]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_node
def test_the_functions_of_the_player(tmp_path):
    stepper = Stepper(draw, 25)
    html = stepper._repr_mimebundle_()["text/html"]
    recording = stepper.recording()
    given = {
        "packed": re.search(r'<script type="application/zlib">(.*?)</script>', html, re.S)[1],
        "recording": recording,
        "elements": [ID.sub("an id", element) for element in recording["elements"]],
        "pictures": [[ID.sub("an id", element) for element in frame_of(draw(i)).elements] for i in range(25)],
    }
    (tmp_path / "recording.json").write_text(json.dumps(given), encoding="utf-8")
    (tmp_path / "player.mjs").write_text(bundled(PLAYER), encoding="utf-8")  # to node, a module
    places = {"PLAYER": (tmp_path / "player.mjs").as_uri(), "RECORDING": str(tmp_path / "recording.json")}
    assert "tests 9" in run_in_node("player.test.mjs", places)
