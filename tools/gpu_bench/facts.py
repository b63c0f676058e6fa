"""What every recording says of itself: the machine, the versions, the date and the command."""

import datetime
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch
import transformers
import triton


def processor() -> str:
    """The processor, its generation where Linux tells it (a virtual machine may hide the model), and what PyTorch uses
    of it, such as "AMD EPYC (family 23, model 1), AVX2, 2 cores"."""
    name = platform.processor() or platform.machine()
    if (path := Path("/proc/cpuinfo")).exists():
        found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", path.read_text(), re.MULTILINE))
        if "model name" in found:
            name = f"{found['model name']} (family {found.get('cpu family')}, model {found.get('model')})"
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"


def facts_of(module: str, on_gpu: bool = True) -> dict[str, Any]:
    """`module`: the one that records, such as "tools.gpu_bench.workloads"."""
    return {
        "machine": torch.cuda.get_device_name() if on_gpu else processor(),
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "transformers": transformers.__version__,
        },
        "date": datetime.date.today().isoformat(),
        "command": f"python -m {module} --record FILE",
    }
