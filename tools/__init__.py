"""What no notebook imports: installing, building the notebooks, benchmarks, and how the bundled model was made."""
