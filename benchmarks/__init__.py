"""What the tool is measured with: each module is one benchmark, started by `scripts/`."""
