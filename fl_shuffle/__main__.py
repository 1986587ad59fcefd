"""`python -m fl_shuffle`: the `fl-shuffle` command."""

import sys

from fl_shuffle._internal.starting import main

if __name__ == "__main__":
    sys.exit(main())
