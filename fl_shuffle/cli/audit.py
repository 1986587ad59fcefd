"""`fl-shuffle audit`: try to break a configuration's privacy claims with canaries."""

from __future__ import annotations

from argparse import Namespace

from fl_shuffle import settings_schema
from fl_shuffle._internal.interrupts import load
from fl_shuffle.auditing.effort import AuditSettings
from fl_shuffle.cli.options import overrides, show
from fl_shuffle.cli.parsers import OF_AUDIT
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.runs.console_messages import tell


def run(arguments: Namespace) -> int:
    # Errors of a configuration are reported before PyTorch is loaded.
    settings = overrides(arguments, OF_AUDIT)
    resolve_config(arguments.source, settings)
    tell("loading PyTorch and Flower")
    load("fl_shuffle.auditing.audit")

    from fl_shuffle.auditing.audit import audit

    effort = settings_schema.given(arguments, AuditSettings)
    report = audit(arguments.source, overrides=settings, on_progress=tell, **effort)
    show((report.to_dict(), report.text().splitlines()), as_json=arguments.json)
    return 1 if report.breaks_proven else 0
