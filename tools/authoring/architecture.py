"""The diagram of ARCHITECTURE.md: the way of a request through the engine, and the folder that each part lives in."""

from dataclasses import dataclass

from lessons_lib.viz.drawing.palette import EDGE, INK, NEUTRAL, PAPER, SERIES, SOFT_INK, color_of, mix, text_on
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import Drawing

DIAGRAM = "lessons_lib/assets/architecture.svg"
ALT = (
    "A request's way through the engine. A prompt enters through add_request and waits in the scheduler's queue. Each "
    "step is a loop of four "
    "parts: the scheduler decides how many tokens of which sequences to compute, and takes blocks from the block pool "
    "and the prefix cache; the "
    "model runner packs them into one batch of token ids, positions, slot mapping and block tables; the model "
    "computes one forward pass, in which "
    "the attention backend writes to the paged KV cache and reads from it; the sampler picks a token for each "
    "sequence. Then the engine updates the "
    "sequences, streams text, and returns the blocks of those that finished. Below, the folders by layer: models; "
    "kv_cache; kernels; attention; "
    "scheduling and batching; engine. recording, measuring, viz and checks watch from outside."
)


@dataclass(frozen=True)
class Box:
    """One part of the engine: where it is drawn, what it is called, where its code is, and what it does."""

    x: float
    y: float
    name: str
    folder: str
    lines: tuple[str, ...]
    fill: str
    width: float = 190
    height: float = 96


def boxes() -> dict[str, Box]:
    pale = {letter: mix(color_of(letter), "#FFFFFF", 0.6) for letter in "ABCD"}
    return {
        "requests": Box(28, 60, "add_request", "engine/", ("validate, tokenize,", "put in the queue"), NEUTRAL, 150),
        "scheduler": Box(
            222, 60, "Scheduler.schedule()", "scheduling/", ("num_scheduled_tokens", "for each sequence"), pale["A"]
        ),
        "runner": Box(
            456, 60, "model runner", "engine/, attention/", ("pack token ids, positions,", "slots, block tables"), pale["B"]  # noqa: E501
        ),
        "model": Box(
            690, 60, "one forward pass", "models/, attention/", ("any causal LM, with its", "attention replaced"), pale["C"], 182  # noqa: E501
        ),
        "pool": Box(
            222, 214, "block pool", "kv_cache/", ("blocks and their owners,", "prefix cache"), pale["A"]
        ),
        "update": Box(
            28, 214, "update", "engine/", ("append tokens,", "stream, free blocks"), NEUTRAL, 150
        ),
        "sampler": Box(456, 214, "sampler", "engine/", ("one token per sequence,", "from its logits"), pale["B"]),
        "cache": Box(
            690, 214, "paged KV cache", "kv_cache/, kernels/", ("write by slot mapping,", "read by block table"), pale["C"], 182  # noqa: E501
        ),
    }  # fmt: skip


LAYERS = ("engine", "scheduling · batching", "attention", "kernels", "kv_cache", "models")
WATCHERS = "checks · viz · measuring · recording"


def diagram() -> Picture:
    d = Drawing(height=492)
    d.text(28, 30, "The way of a request", 16, bold=True)
    parts = boxes()
    for box in parts.values():
        _draw_box(d, box)
    arrows = {
        "M178 108H218": "",
        "M412 108H452": "",
        "M646 108H686": "",
        "M317 156V210": "blocks",
        "M781 156V210": "K, V",
        "M690 130H668V262H650": "logits",
        "M456 262H434V340H103V314": "tokens",
    }
    for path in arrows:
        d.lines(path, INK, 1.6, arrow=True)
    d.lines("M178 240H200V130H218", INK, 1.6, arrow=True)
    d.text(325, 184, "allocate", 12, fill=SOFT_INK)
    d.text(789, 184, "write, read", 12, fill=SOFT_INK)
    d.text(664, 196, "logits", 12, "end", fill=SOFT_INK)
    d.text(270, 352, "one token per sequence", 12, fill=SOFT_INK)
    d.text(196, 184, "next step", 12, "end", fill=SOFT_INK)
    _draw_layers(d)
    return d.picture(ALT)


def _draw_box(d: Drawing, box: Box) -> None:
    d.rect(box.x, box.y, box.width, box.height, box.fill, INK, 1.2, radius=6)
    ink = text_on(box.fill)
    d.text(box.x + 12, box.y + 20, box.name, 14, bold=True, fill=ink)
    d.text(box.x + 12, box.y + 39, box.folder, 12, fill=ink, mono=True)
    for number, line in enumerate(box.lines):
        d.text(box.x + 12, box.y + 62 + 18 * number, line, 13, fill=ink)


def _draw_layers(d: Drawing) -> None:
    """Each folder imports only from those to its right; the watchers import from all of them."""
    d.text(28, 394, "The folders: each imports only from those to its right", 16, bold=True)
    x, y = 28.0, 414.0
    widths = (90, 190, 104, 90, 104, 90)
    for layer, width in zip(LAYERS, widths):
        d.rect(x, y, width, 30, PAPER, SERIES[0], 1.4, radius=4)
        d.text(x + width / 2, y + 15, layer, 13, "middle")
        x += width + 12
    d.rect(28, y + 40, x - 40, 26, PAPER, EDGE, 1.4, dashed=True, radius=4)
    d.text(
        28 + (x - 40) / 2, y + 53, WATCHERS + ": watch from outside, never imported by the layers above", 12, "middle"
    )
