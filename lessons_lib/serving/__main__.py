"""Serve a model: `python -m lessons_lib.serving --port 8000`, or `make serve`."""

import sys
from collections.abc import Sequence

from lessons_lib.models.configuration import UnsupportedModel
from lessons_lib.models.loading import DamagedModel, ModelNotFound
from lessons_lib.serving.http.arguments import WrongArgument, parse
from lessons_lib.serving.http.server import serve
from lessons_lib.serving.messages import EngineDead


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 after a signal, 1 if the server couldn't start, 2 for a wrong argument."""
    try:
        wanted = parse(arguments)
    except WrongArgument as error:
        print(f"{error}\n`python -m lessons_lib.serving --help` lists all options.", file=sys.stderr)
        return 2
    if not (wanted.settings.is_local or wanted.settings.api_keys):
        print(f"Any client of {wanted.settings.host} can use this server: it has no --api-key.", file=sys.stderr)
    try:
        serve(wanted.recipe, wanted.settings, wanted.engine, until_stdin_closes=wanted.until_stdin_closes)
    except (OSError, ModelNotFound, DamagedModel, UnsupportedModel, EngineDead, MemoryError, ValueError) as error:
        print(f"The server can't start: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before it served
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
