"""What every recording says of itself: the machine, the versions, the date and the command."""

import argparse
import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import triton


def facts_of(module: str, on_gpu: bool = True) -> dict[str, Any]:
    """`module`: the one that records, such as "tools.gpu_bench.workloads"."""
    return {
        "machine": torch.cuda.get_device_name() if on_gpu else "CPU",
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "transformers": transformers.__version__,
        },
        "date": datetime.date.today().isoformat(),
        "command": f"python -m {module} --record FILE",
    }


def run_and_record(module: str, description: str | None, results: Callable[[], dict[str, Any]]) -> None:
    """Run a benchmark as a command without options of its own: print its results, and record them if asked to."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--record", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("There is no GPU here. Recorded results are in lessons_lib/assets/recorded.")
    text = json.dumps(facts_of(module) | results(), indent=1)
    print(text)
    if options.record:
        options.record.write_text(text + "\n", encoding="utf-8")
