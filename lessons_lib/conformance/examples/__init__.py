"""Engines written from scratch, as a learner would: `small_engine` needs torch and a Hugging Face model, no more."""
