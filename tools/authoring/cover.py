"""The picture of README and site: the six stories in static waves and with continuous batching, as they really ran."""

from lessons_lib.batching.continuous_batching import batch_generate
from lessons_lib.batching.static_batching import static_generate
from lessons_lib.measuring.ledger import SIX_STORIES
from lessons_lib.models.loading import load_model
from lessons_lib.recording.serving import record_run
from lessons_lib.viz.drawing.night import image_style
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.timelines.timeline import animate_compare

COVER = "lessons_lib/assets/static_and_continuous.svg"


def cover() -> Picture:
    model, tokenizer = load_model()
    static = record_run(static_generate, model, tokenizer, **SIX_STORIES, batch_size=4).trace
    continuous = record_run(batch_generate, model, tokenizer, **SIX_STORIES, batch_size=4).trace
    picture = animate_compare(static, continuous, ("Static batching", "Continuous batching"))
    return Picture(picture.svg.replace("<style>", image_style(picture.svg) + "<style>", 1), picture.alt)
