"""python -m tools.record_drain: records the drain that lesson 14 shows."""

import os
import platform
from datetime import date

import torch

from lessons_lib.recording.drain import FILE, record_drain

if __name__ == "__main__":
    machine = f"{platform.machine()} CPU, {os.cpu_count()} cores, torch {torch.__version__}"
    command = "python -m tools.record_drain"
    record_drain(provenance=f"Recorded on {machine}; {command}; {date.today():%Y-%m-%d}").save()
    print(f"{FILE} is written.")
