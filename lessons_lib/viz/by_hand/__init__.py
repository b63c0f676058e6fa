"""What a reader drives by hand, without a kernel: the mask of a packed row, and a block pool."""

from lessons_lib.viz.by_hand.elements import ByHand, mask_by_hand, pool_by_hand
