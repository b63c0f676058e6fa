"""Lesson 14: the HTTP server of an engine."""
