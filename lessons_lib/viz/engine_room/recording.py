"""The run that the engine room plays at once, while the live engine loads, with the words of the bundled model.

    python -m lessons_lib.viz.engine_room.recording

makes recording.json anew, always the same, so that the pages can be built where there is no PyTorch.
"""

import functools
import json
from pathlib import Path

from lessons_lib.engine import LLMEngine, SamplingParams
from lessons_lib.measuring.stories import STORIES
from lessons_lib.models import load_model
from lessons_lib.viz.engine_room.room import DEFAULTS, Room

SYSTEM = (
    "The old owl told stories to all small animals of the forest. Its stories were short, it used simple words, and at "
    "the end everybody was happy. One night it said: Once upon a time, there was"
)
SENTENCES = [sentence + "." for story in STORIES for sentence in story.prompt.rstrip(".").split(". ")[:-1]]
PROMPTS = {
    "short": [
        *("Tom and Sue went to the", "The old tree", "A little dog named Max wanted", "Ben had a red ball. He"),
        *("The rain did not stop, so", "In the garden there lived a", "Mia saw a big bird", '"Can you help me?" asked'),
    ],
    "long": [" ".join(SENTENCES[at:] + SENTENCES[:at]) for at in range(len(SENTENCES))],
    "system": [f"{SYSTEM} {end}" for end in ("a cat", "a frog", "a boat", "an old bear", "a star", "a girl")],
    "stories": [story.prompt for story in STORIES],
}


FILE = Path(__file__).with_name("recording.json")
RECORDED_STEPS = 120


class Answers:
    """What the bundled model answers."""

    def __init__(self) -> None:
        model, self.tokenizer = load_model()
        self.prompts = {kind: [self.tokenizer(text)["input_ids"] for text in texts] for kind, texts in PROMPTS.items()}
        self.engine = LLMEngine(model, self.tokenizer)
        self.of = functools.cache(self.compute)

    def compute(self, prompt: tuple[int, ...], most: int, temperature: float, seed: int) -> list[int]:
        """The tokens that answer a prompt, by the course's engine."""
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=most)
        (output,) = self.engine.generate([list(prompt)], params)
        return output.completions[0].token_ids


def record(steps: int, answers: Answers, settings: dict | None = None) -> list[dict]:
    """The frames of a run from its beginning, as the page's worker makes them: with the words of all tokens."""
    settings = DEFAULTS | (settings or {})
    room, frames, ids, asked = Room(settings, answers.prompts), [], {}, {}
    for _ in range(steps):
        plan, tokens = json.loads(room.plan()), []
        for name, prompt, most, *_ in room.arrived:
            ids[name], asked[name] = list(prompt), (tuple(prompt), most)
        for row in plan["rows"]:
            answer = answers.of(*asked[row["id"]], settings["temperature"], row["seed"])
            tokens.append(answer[row["position"]])  # ignored in the middle of a prompt
        frame = json.loads(room.done(tokens))
        for arrived in frame["arrived"]:
            arrived[1] = pieces(answers.tokenizer, [], arrived[1])
        for new in frame["new"]:
            ids[new[0]].append(new[1])
            new[1] = pieces(answers.tokenizer, ids[new[0]][:-1], [new[1]])[0]
        frames.append(frame)
    return frames


def pieces(tokenizer, before: list[int], new: list[int]) -> list[str]:
    """The text that each new token adds. One that ends within a character adds nothing; the next one adds it all."""
    texts = [tokenizer.decode([*before, *new[:count]], skip_special_tokens=True) for count in range(len(new) + 1)]
    whole = [text.rstrip("\ufffd") for text in texts]
    return [whole[at + 1][len(whole[at]) :] for at in range(len(new))]


if __name__ == "__main__":
    made = {"prompts": PROMPTS, "frames": record(RECORDED_STEPS, Answers())}
    FILE.write_text(json.dumps(made, separators=(",", ":")) + "\n", encoding="utf-8")
