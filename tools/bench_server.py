"""`python -m tools.bench_server --port 8000 slow 64`: the server around an engine of `serving_bench`."""

import sys
from dataclasses import dataclass

from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.models.loading import BUNDLED_MODEL
from lessons_lib.serving.http.arguments import parse
from lessons_lib.serving.http.engine_recipe import EngineRecipe
from lessons_lib.serving.http.server import serve
from tools.serving_bench import make_engine


@dataclass(frozen=True)
class BenchRecipe(EngineRecipe):
    """One of the engines of `serving_bench`; they all have the bundled model's tokenizer."""

    name: str = "slow"
    streams: int = 64

    def __call__(self) -> LLMEngine:
        return make_engine(self.name, self.streams)


def main() -> None:
    *arguments, name, streams = sys.argv[1:]
    wanted = parse([*arguments, "--model", str(BUNDLED_MODEL), "--no-access-log"])
    recipe = BenchRecipe(str(BUNDLED_MODEL), name=name, streams=int(streams))
    serve(recipe, wanted.settings, wanted.engine, until_stdin_closes=wanted.until_stdin_closes)


if __name__ == "__main__":
    from tools.bench_server import main as importable  # the engine's process can't import __main__

    importable()
