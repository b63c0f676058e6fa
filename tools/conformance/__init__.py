"""Serves a tiny random model of every causal language model in transformers and compares with `generate`."""
