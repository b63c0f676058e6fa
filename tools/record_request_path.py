"""python -m tools.record_request_path: records the request across the processes that lesson 14 shows."""

import os
import platform
from datetime import date

import torch

from lessons_lib.recording.request_path import FILE, record_path

if __name__ == "__main__":
    machine = f"{platform.machine()} CPU, {os.cpu_count()} cores, torch {torch.__version__}"
    command = "python -m tools.record_request_path"
    record_path(provenance=f"Recorded on {machine}; {command}; {date.today():%Y-%m-%d}").save()
    print(f"{FILE} is written.")
