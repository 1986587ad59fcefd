"""`fl-shuffle audit`: try to break a configuration's privacy claims with canaries."""

from __future__ import annotations

from argparse import Namespace

from fl_shuffle import declare
from fl_shuffle.auditing.effort import AuditSettings
from fl_shuffle.cli.options import overrides, show
from fl_shuffle.cli.parsers import OF_AUDIT
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.interrupts import load
from fl_shuffle.run_words import tell


def run(arguments: Namespace) -> int:
    # What is wrong with a configuration is said before PyTorch is loaded.
    settings = overrides(arguments, OF_AUDIT)
    resolve_config(arguments.source, settings)
    tell("loading PyTorch and Flower")
    load("fl_shuffle.auditing.audit")

    from fl_shuffle.auditing.audit import audit

    effort = declare.given(arguments, AuditSettings)
    report = audit(arguments.source, overrides=settings, on_progress=tell, **effort)
    show((report.to_dict(), report.text().splitlines()), as_json=arguments.json)
    return 1 if report.breaks_proven else 0
