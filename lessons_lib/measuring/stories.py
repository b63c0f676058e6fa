"""The six requests of every lesson: beginnings of stories, with unequal lengths and token limits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Story:
    """One request of the course. A to F have the same color in every picture."""

    name: str
    prompt: str
    max_new_tokens: int


STORIES = (
    Story("A", "Once upon a time, there was a little girl named Lily.", 30),
    Story(
        "B",
        "Tom had a small red boat. Every day after lunch he took it to the pond behind the house and watched it go "
        "from one side to the other. One day the wind was strong, and the boat went far away. Tom was sad. He wanted "
        "his boat back, so he asked his friend the duck",
        60,
    ),
    Story("C", "The old dog", 100),
    Story("D", "Mia and Ben found a big box in the garden. Mia wanted to open it, but Ben said,", 20),
    Story("E", "It was raining.", 80),
    Story(
        "F",
        "Anna loved to bake cakes with her grandma. On Sunday they made a cake with apples. It smelled so good that "
        "the bear who lived in the forest came to the window.",
        40,
    ),
)

NAMES = tuple(story.name for story in STORIES)
PROMPTS = tuple(story.prompt for story in STORIES)
MAX_NEW_TOKENS = tuple(story.max_new_tokens for story in STORIES)
