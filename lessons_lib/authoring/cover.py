"""The README's picture: the six stories served in static waves and with continuous batching, from a real run."""

from lessons_lib.continuous_batching import batch_generate
from lessons_lib.ledger import SIX_STORIES
from lessons_lib.model import load_model
from lessons_lib.static_batching import static_generate
from lessons_lib.viz.picture import Picture
from lessons_lib.viz.timeline import draw_compare

COVER = "lessons_lib/assets/static_and_continuous.svg"


def cover() -> Picture:
    model, tokenizer = load_model()
    static = static_generate(model, tokenizer, **SIX_STORIES, batch_size=4).trace
    continuous = batch_generate(model, tokenizer, **SIX_STORIES, batch_size=4).trace
    return draw_compare(static, continuous)
