"""Which models the engine serves: a feature it doesn't know is refused by name."""


class UnsupportedModel(ValueError):
    """The model needs a feature that the engine doesn't have.

    The message names the feature, its value and what to do about it.
    """
