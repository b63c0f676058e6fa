"""Engines of others behind the contract of `lessons_lib.conformance`, to be judged by it."""
