"""What every recording says of itself: the machine, the versions, the date and the command."""

import datetime
import os
import platform
from typing import Any

import torch
import transformers
import triton


def facts_of(module: str, on_gpu: bool = True) -> dict[str, Any]:
    """`module`: the one that records, such as "tools.gpu_bench.workloads"."""
    return {
        "machine": torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU, {os.cpu_count()} cores",
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "transformers": transformers.__version__,
        },
        "date": datetime.date.today().isoformat(),
        "command": f"python -m {module} --record FILE",
    }
