"""Lesson 14: the engine behind a URL."""
