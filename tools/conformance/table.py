"""The table of architectures, in Markdown."""

from collections.abc import Iterable
from pathlib import Path

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tools.conformance.serve import BROKEN, GATHERED, PAGED, REFUSED, WRONG, Outcome

TABLE = Path(__file__).parents[2] / "tests" / "conformance" / "MODELS.md"
MEANING = {
    PAGED: "served from the paged KV cache, token for token as `generate`",
    GATHERED: "served token for token as `generate`, slowly: each sequence alone, over a copy of its blocks",
    REFUSED: "`UnsupportedModel`, before the first token",
    BROKEN: "transformers itself can't build a tiny model of it here, or `generate` fails; not known",
    WRONG: "a defect",
}


def markdown(outcomes: list[Outcome]) -> str:
    """The whole file."""
    counts = {verdict: sum(each.verdict == verdict for each in outcomes) for verdict in MEANING}
    summary = [f"| {verdict} | {counts[verdict]} | {meaning} |" for verdict, meaning in MEANING.items()]
    return "\n".join(
        [
            "# Which models the engine serves",
            "",
            f"Every causal language model of transformers {transformers.__version__}, as a tiny random model with "
            "short windows in float32: six prompts of 1 to 40 tokens in one paged batch, with chunked prefill. Tokens "
            "and their log-probabilities are compared with those of greedy `generate`, one prompt at a time. Written "
            "by `python -m tools.conformance --write`.",
            "",
            *rows("| result | architectures | meaning |", summary),
            "",
            *rows("| model_type | class | result | why |", map(row, outcomes)),
            "",
        ]
    )


def row(outcome: Outcome) -> str:
    """One line of the table."""
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[outcome.model_type]
    return f"| {outcome.model_type} | {name} | {outcome.verdict} | {outcome.reason} |"


def rows(header: str, lines: Iterable[str]) -> list[str]:
    """A table with its header."""
    return [header, "|" + " --- |" * (header.count("|") - 1), *lines]
