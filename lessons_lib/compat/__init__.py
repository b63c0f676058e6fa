"""Can the engine serve this model, and how? Asked once, before the first request; nothing of it runs in a step.

Read in this order: fit, which the engine calls; pool_size; probe, shallow, lengths; gathered_runner, for models that
the usual runner can't serve; generation_defaults. What needs no engine is in `models`: support, whole_folder.
"""
