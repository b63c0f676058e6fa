"""Engines as a learner may write them: one request at a time, in batches, and with the whole small contract."""
