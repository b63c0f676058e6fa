"""What holds for every picture, and what each of them refuses."""

import importlib
import itertools
import pkgutil
import re
from pathlib import Path

import picture_cases
import pytest
import torch
from drawn_colors import too_faint
from picture_cases import ADD, CONTINUOUS, DECODE, GROWTH, PICTURES, SOFTMAX, STATIC, mask_of, packed_step
from svg_reading import assert_sound

from lessons_lib import viz
from lessons_lib.attention.masks import tag_tokens
from lessons_lib.recording.trace import Trace
from lessons_lib.viz import batches, cache, masks, programs, softmax, timelines
from lessons_lib.viz.drawing.night import CHART
from lessons_lib.viz.drawing.picture import Picture


def drawn(name):
    found = PICTURES[name]()
    return [found] if isinstance(found, Picture) else found


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_sound_and_has_contrast_in_light_and_dark(name):
    for index, picture in enumerate(drawn(name)):
        if CHART in picture.svg:
            assert picture.alt.strip() and "nan" not in picture.svg
            assert set(re.findall(r"url\(#([^)]+)\)", picture.svg)) <= set(re.findall(r'id="([^"]+)"', picture.svg))
        else:
            assert_sound(lambda index=index: drawn(name)[index] if index == 0 else picture)
            assert not too_faint(picture.svg)


def test_every_kind_of_picture_is_in_the_table():
    exported = {
        name
        for module in pkgutil.iter_modules(viz.__path__)
        for name in vars(importlib.import_module(f"lessons_lib.viz.{module.name}"))
        if re.match(r"draw_|watch|\w+_chart", name)
    }
    source = Path(picture_cases.__file__).read_text(encoding="utf-8")
    assert exported and not {name for name in exported if f"{name}(" not in source}


def test_pictures_of_a_page_share_no_hatching_or_clipping():
    hatched = [drawn(name)[0] for name in ("timeline", "compare", "lines", "bars", "roofline")]
    referred = [set(re.findall(r"url\(#([^)]+)\)", picture.svg)) for picture in hatched]
    assert all(referred) and not any(one & two for one, two in itertools.combinations(referred, 2))


TAGS = tag_tokens([3, 2])
MASK = torch.ones(5, 5, dtype=torch.bool)
REFUSED = [
    (lambda: timelines.draw_timeline(STATIC, -1), "no step -1; it may be from 0 to 4"),
    (lambda: timelines.draw_compare(STATIC, CONTINUOUS, 99), "no step 99; it may be from 0 to 4"),
    (lambda: timelines.draw_timeline(Trace(), 0), "no step 0; there are none"),
    (lambda: cache.draw_cache_growth(GROWTH, 3), "no step 3; it may be from 0 to 2"),
    (lambda: batches.draw_slot_rows(STATIC, 5, 16), "no step 5; it may be from 0 to 4"),
    (lambda: softmax.draw_softmax_step(SOFTMAX, 4, "abcdefghij"), "no step 4; it may be from 0 to 3"),
    (lambda: programs.draw_program(ADD, 3), "no program 3; it may be from 0 to 2"),
    (lambda: programs.watch(DECODE), "no moments. Record it with `moments_of="),
    (lambda: batches.draw_packed_step(packed_step([161], [0]), str), "161 tokens; at most 160"),
    (lambda: masks.draw_mask(MASK[:, :4], TAGS, TAGS), r"shape \[5, 4\]; with 5 queries and 5 keys it must"),
    (lambda: masks.draw_mask(MASK.float(), TAGS, TAGS), "dtype torch.float32; it must be torch.bool"),
    (lambda: masks.draw_mask(MASK, TAGS, TAGS, row=5), "no row 5; it may be from 0 to 4"),
    (lambda: mask_of([101]), "101 queries and 101 keys; 1 to 100 of each can be drawn"),
    (lambda: Picture("<svg></svg>", " \n"), "alternative text"),
    (lambda: Picture("<p>no</p>", "words"), "<svg>"),
]


@pytest.mark.parametrize("call, words", REFUSED, ids=[words for _, words in REFUSED])
def test_what_can_not_be_drawn_is_refused_with_a_reason(call, words):
    with pytest.raises((ValueError, IndexError), match=words):
        call()
