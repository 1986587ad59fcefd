"""Against other simulators of private federated learning: `scripts/bench peers`."""
