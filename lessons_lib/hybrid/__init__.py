"""Lesson 19: models with layers that remember something else than one key and one value per token."""
