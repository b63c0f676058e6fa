"""Compatibility of a model with the engine, determined once, before the first request; nothing of it runs in a step.

Read in this order: fit, which the engine calls; pool_size; probe, shallow, lengths; alone_runner, for models that no
other runner can serve; generation_defaults. Checks that need no engine are in `models`: support, whole_folder.
"""
