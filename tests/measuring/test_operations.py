"""Counting operations: views compute nothing, and a custom operator is one."""

import torch

from lessons_lib.attention.custom_op import write_kv
from lessons_lib.measuring.operations import CountOperations


def test_operations_are_counted_views_are_not_and_a_custom_operator_is_one():
    x = torch.ones(2, 3)
    with CountOperations() as operations:
        (x.view(3, 2) + 1).transpose(0, 1).sum()
    assert operations.count == 2  # the sum of x and 1, and the sum of all
    cache, new, slots = torch.zeros(2, 4, 1, 8), torch.ones(3, 1, 8), torch.tensor([0, 1, 5])
    with CountOperations() as operations:
        write_kv(new, new, cache, cache.clone(), slots)
    assert operations.count == 2  # the clone, and the operator
