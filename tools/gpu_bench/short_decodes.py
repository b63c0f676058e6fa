"""`python -m tools.gpu_bench.short_decodes`: few short sequences, split and merged by one kernel or by two.

Of the cases below, those are timed in which `splits_are_short`.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from lessons_lib.kernels.launch import keys_per_split, splits_are_short
from lessons_lib.measuring.attention_cases import decode_case, make_inputs
from lessons_lib.measuring.gpu_timing import microseconds
from tools.gpu_bench.facts import run_and_record
from tools.gpu_bench.launches import decode_with, each_table

HEADS = ((14, 2, 64), (16, 8, 128), (32, 8, 64), (32, 8, 128))
LENGTHS = ((1, 64, 2048), (1, 512, 512), (1, 640, 2048), (1, 2048, 2048), (2, 640, 2048), (4, 640, 2048),
           (8, 300, 2048), (8, 1000, 2048), (8, 2048, 2048), (16, 640, 1024))  # fmt: skip


def cases() -> Iterator[dict]:
    """For each case: its heads, `num_seqs` sequences of `context_len` keys, block tables with room for `room`, and the
    microseconds with two kernels and with one."""
    processors = torch.cuda.get_device_properties().multi_processor_count
    for heads in HEADS:
        for num_seqs, context_len, room in LENGTHS:
            if splits_are_short(num_seqs, heads[1], room, processors):
                inputs = make_inputs(decode_case(heads, [context_len] * num_seqs, "short"))
                width = room // inputs.case.block_size
                inputs.tables = [F.pad(table, (0, width - table.shape[1])).contiguous() for table in inputs.tables]
                split_size = keys_per_split(num_seqs, heads[1], room, processors)
                two = each_table(inputs, lambda i, table, size=split_size: decode_with(i, table, split_size=size))
                yield {
                    "heads": heads,
                    "num_seqs": num_seqs,
                    "context_len": context_len,
                    "room": room,
                    "two_kernels_us": microseconds(two),
                    "one_kernel_us": microseconds(each_table(inputs, decode_with)),
                }


def results() -> dict[str, list[dict]]:
    return {"cases": list(cases())}


if __name__ == "__main__":
    run_and_record("tools.gpu_bench.short_decodes", __doc__, results)
