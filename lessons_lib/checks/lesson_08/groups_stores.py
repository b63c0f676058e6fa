"""What the programs of 08.2 store: each query head of their group, once."""

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import cells, touched
from lessons_lib.checks.lesson_08.groups_cases import Decodes


def check_stores(recording, program, made: Decodes) -> None:
    kv_head, seq = program.ids
    stored, want = cells(recording, program, "store", "out", 2), [(seq, head) for head in made.heads(kv_head)]
    if touched(recording, program, "store", "out") == made.elements(seq, kv_head):
        return
    text = ", ".join(f"out[{i}, {head}]" for i, head in stored[:6]) + (", …" if len(stored) > 6 else "")
    shown = ", ".join(f"out[{i}, {head}]" for i, head in want)
    what = f"program ({kv_head}, {seq}) should store {shown}; yours stores {text or 'nothing'}."
    if set(stored) == set(want):
        found = touched(recording, program, "store", "out")
        own = len(set(made.elements(seq, kv_head)) & set(found))
        what = (
            f"program ({kv_head}, {seq}) should store all {len(made.elements(seq, kv_head))} elements of {shown}, and "
            f"nothing else; yours stores {own} of them, and {len(found) - own} others."
        )
    raise Mistake(what, case=made.text, idea=_why_stored(recording, kv_head, seq, stored, want, made))


def _why_stored(recording, kv_head: int, seq: int, stored, want, made: Decodes) -> str:
    group, kv_heads = made.group, made.k_cache.shape[2]
    heads = [head for _, head in stored]
    if set(stored) == set(want):
        return (
            "Store whole heads of HEAD_DIM elements, `stride_q_head` apart: q and out may be views of larger tensors, "
            "with gaps between the heads."
        )
    if not stored:
        return "This program returned early, or its mask is False everywhere. The rows below GROUP are heads."
    if kv_head != seq and set(stored) == {(kv_head, head) for head in made.heads(seq)}:
        return "KV head and sequence are swapped. Axis 0 of the grid counts KV heads, axis 1 sequences."
    if set(want) < set(stored):
        return (
            f"Only GROUP = {group} of the BLOCK_M = 16 rows are query heads. The others are padding, and at their "
            "addresses are the heads of another program: mask them, `row < GROUP`."
        )
    if set(stored) < set(want):
        return (
            "One program computes all query heads of one KV head: GROUP rows. Rows are heads, `head[:, None] * "
            "stride_q_head`."
        )
    if kv_heads > 1 and sorted(heads) == [row * kv_heads + kv_head for row in range(group)]:
        return (
            "Those heads are round-robin. Neighbors share a KV head: the first GROUP query heads use KV head 0, the "
            "next GROUP KV head 1. So head = KV head × GROUP + row."
        )
    if kv_head and sorted(heads) == list(range(group)):
        return "Those are the heads of KV head 0. Head = KV head × GROUP + row."
    if kv_head and sorted(heads) == [kv_head + row for row in range(group)]:
        return "The group of KV head h starts at query head h × GROUP, not at h."
    return (
        "Query head h of sequence i starts at i × stride_seq + h × stride_q_head, in q and in out. The heads of this "
        "program are KV head × GROUP + row."
    )
