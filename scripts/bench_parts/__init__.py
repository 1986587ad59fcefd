"""What scripts/bench_simulation is made of."""
