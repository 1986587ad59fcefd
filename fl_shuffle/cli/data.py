"""`fl-shuffle data`: how a configuration deals its training records to the clients."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from fl_shuffle.cli.options import overrides, show
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.data.label_counts import LabelCounts
from fl_shuffle.report.label_picture import write_labels
from fl_shuffle.runs.console_messages import tell


def run(arguments: Namespace) -> int:
    config = resolve_config(arguments.config or "quickstart", overrides(arguments, ("data",)))
    counts = LabelCounts.of(config.data)
    if arguments.plot:
        write_labels(Path(arguments.plot), counts.counts, counts.outside, counts.names)
    found = counts.summary()
    least, middle, most = found["records_of_a_client"]
    few, usual, many = found["classes_of_a_client"]
    lines = [
        f"{found['records']:,} training records of {found['classes']} classes, dealt to "
        f"{found['clients']:,} clients (data.partition = {config.data.partition!r})",
        f"records of a client: {least:,} to {most:,}, median {middle:,.0f}",
        f"classes of a client: {few} to {many}, median {usual:g}; its most frequent class holds "
        f"{found['largest_share']:.0%} of its records on average",
    ]
    if found["records_of_no_class"]:
        lines.append(f"records whose label is no class: {found['records_of_no_class']:,}")
    show((found, lines), as_json=arguments.json)
    if arguments.plot:
        tell(f"wrote {arguments.plot}: exact counts of training records, which are not private")
    return 0
