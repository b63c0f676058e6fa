"""What no notebook imports: building the notebooks, benchmarks, the soak test, and how the bundled model was made."""
