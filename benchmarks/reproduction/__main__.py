"""`python -m benchmarks.reproduction TARGET ...`."""

import sys

from benchmarks.reproduction.command import main

if __name__ == "__main__":
    sys.exit(main())
