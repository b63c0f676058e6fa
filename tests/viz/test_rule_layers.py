"""A mask's rules one by one, and what is said with each."""

from svg_reading import texts

from lessons_lib.attention.masks import block_diagonal_mask, tag_tokens
from lessons_lib.viz.masks import watch_rules


def answers_with(mask):
    """Right with the right mask only."""
    tags = tag_tokens([2, 3])
    is_right = bool((mask(tags, tags) == block_diagonal_mask(tags, tags)).all())
    return [" ran home.", " and dry." if is_right else " and wet.\n"]


def test_each_layer_allows_what_its_rules_allow_and_says_what_follows():
    stepper = watch_rules("CE", [["The", " dog"], ["It", " was", " wet"]], answers_with)
    layers = (
        # Of 25 cells: all; no later position (keys of the other one included); own sequence; both.
        ("no rule", 25, 16),
        ("not in the future", 17, 8),
        ("same sequence", 13, 4),
        ("same sequence and not in the future", 9, 0),
    )
    assert stepper.recording()["names"] == [name for name, *_ in layers]
    for picture, (_, allowed, wrong) in zip(stepper.pictures, layers):
        assert picture.svg.count("token attends") == allowed
        assert picture.svg.count("m0 -") == wrong and f"{wrong} of them wrongly" in picture.alt, "crossed out"
        assert texts(picture).count("as it should be") == (1 if wrong else 2)
        assert ("E goes on with ' and wet.\\n' instead of ' and dry.'" in picture.alt) == (wrong > 0)
