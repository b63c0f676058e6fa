"""Tools around the course that no notebook imports: install, doctor, benchmarks, authoring. Run them from the repository root."""
