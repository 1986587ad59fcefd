"""`python -m benchmarks.chaos`, as scripts/chaos starts it."""

import sys

from benchmarks.chaos.groups import main

if __name__ == "__main__":
    sys.exit(main())
