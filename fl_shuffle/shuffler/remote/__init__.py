"""The shuffler as a party of its own: sealed reports, its process, and how the others talk to it.

A client seals its report and hands it to the shuffler; the analyzer (the server) gets a round's
reports in random order, or their sum, and who took part. See docs/how-to/separate-shuffler.md.
"""

MEMORY = 1 << 28
"""Bytes of calls under way together, unless the shuffler's operator says otherwise."""
SLOWEST = 1 << 14
"""Bytes a second that a site's line carries at least, unless the operator says otherwise."""
