"""What `benchmarks.simulation` is made of."""
