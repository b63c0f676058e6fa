"""Sequences in any state, built for the checks of lesson 09."""

from lessons_lib.scheduling.sequence import Sequence

END = -1  # serves as the end token


def a_sequence(
    name: str,
    prompt: int,
    *,
    answered: int = 0,
    computed: int = 0,
    max_tokens: int = 50,
    arrival: float = 0.0,
    tier: int = 0,
    interactive: bool = False,
    expected: float | None = None,
) -> Sequence:
    """A sequence with `prompt` and `answered` known tokens, of which `computed` are computed."""
    return Sequence(
        name, list(range(prompt)), max_tokens, frozenset({END}), arrival_time=arrival, tier=tier,
        expected_tokens=expected, is_interactive=interactive,
        output_ids=list(range(answered)), num_computed_tokens=computed,
    )  # fmt: skip


def names_of(sequences) -> list[str]:
    return [getattr(sequence, "id", repr(sequence)) for sequence in sequences]
