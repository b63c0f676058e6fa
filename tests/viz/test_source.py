"""Sources in color, folded when they are long."""

import pytest
import torch

from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.viz.source import show_source, source_of


def test_a_short_source_is_open_a_long_one_is_folded_and_both_lead_to_the_file(capsys):
    short, long = source_of(blocks_for), source_of(BlockPool)
    assert "<details" not in short._repr_html_() and "<details>" in long._repr_html_()
    assert "<span" in short._repr_html_() and "white-space:pre;" in short._repr_html_()
    assert f'href="../{short.file}"' in short._repr_html_() and short.file == "lessons_lib/kv_cache/block_pool.py"
    show_source(blocks_for, BlockPool.free)
    shown = capsys.readouterr().out
    assert shown.startswith("def blocks_for") and "def free" in shown


def test_what_a_decorator_wraps_is_shown_and_what_has_no_source_is_refused():
    source = source_of(greedy_with_cache)
    assert source.file == "lessons_lib/batching/greedy.py" and "def greedy_with_cache" in str(source)
    assert source_of(torch.no_grad).file == ""
    for thing in (3, len):
        with pytest.raises(TypeError, match="has no source: give a function"):
            show_source(BlockPool.free, thing)
