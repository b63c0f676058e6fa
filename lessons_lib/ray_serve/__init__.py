"""Replicas on Ray Serve: the engine of this course on more than one machine."""
