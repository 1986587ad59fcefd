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
    config = resolve_config(arguments.source, overrides(arguments, OF_AUDIT))
    tell("loading PyTorch and Flower")
    load("fl_shuffle.auditing.audit")

    from fl_shuffle.auditing.audit import audit_configuration
    from fl_shuffle.threads import keep_one_thread

    given = AuditSettings(**declare.given(arguments, AuditSettings))
    keep_one_thread()
    report = audit_configuration(arguments.source, config, given, tell=tell)
    show((report.to_dict(), report.text().splitlines()), as_json=arguments.json)
    return 1 if report.breaks_proven else 0
