"""The one exception of the build."""


class BuildError(Exception):
    """A lesson that cannot be built: the message names the file, the cell or exercise, and the remedy."""
