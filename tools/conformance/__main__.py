"""Which architectures of transformers the engine serves token for token: all causal language models, or some.

    python -m tools.conformance                     all of them, in about three minutes
    python -m tools.conformance mistral gemma2      these
    python -m tools.conformance --shard 2/5         every fifth, from the second on
    python -m tools.conformance --write             all of them, and write tests/conformance/MODELS.md

Exit status 1 if any answer is wrong.
"""

import argparse
import sys
import warnings
from collections import Counter

import torch
from transformers import logging

from tools.conformance.serve import WRONG, Outcome, check_architecture
from tools.conformance.table import TABLE, markdown
from tools.conformance.tiny_models import architectures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.conformance", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="model_type", help="architectures; all if none is given")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="every Nth architecture, from the Ith on")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}; needs all architectures")
    options = parser.parse_args()
    index, count = map(int, options.shard.split("/"))
    if options.write and (options.names or count > 1):
        parser.error("--write needs all architectures: leave out names and --shard")
    quiet()
    outcomes = [report(name) for name in (options.names or architectures())[index - 1 :: count]]
    print(*(f"{number} {verdict}" for verdict, number in Counter(each.verdict for each in outcomes).items()), sep=", ")
    if options.write:
        TABLE.write_text(markdown(outcomes), encoding="utf-8")
    return int(any(each.verdict == WRONG for each in outcomes))


def report(name: str) -> Outcome:
    """Check an architecture and print what became of it."""
    outcome = check_architecture(name)
    print(f"{outcome.verdict:18} {name:24} {outcome.reason}", flush=True)
    return outcome


def quiet() -> None:
    """Keep warnings of transformers out of the table; one thread, as tiny models gain nothing from more."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


if __name__ == "__main__":
    sys.exit(main())
