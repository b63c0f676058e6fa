"""Models whose layers aren't all alike: most keep one state per sequence, of a fixed size, in place of keys and values.

Read in this order: sequence_states, the slots and checkpoints; packed_states, which splits a packed row around the
layers that keep states; find_states, which finds those; hybrid_runner; and for a GPU gated_delta_layer and
gpu_hybrid_runner. On their own: window_blocks and windowed_runner, for layers that see only the last tokens.
"""
