"""Try to break the privacy claims with canaries: empirical lower bounds on epsilon."""

from __future__ import annotations

import argparse

from fl_shuffle import declare
from fl_shuffle.auditing.effort import AuditSettings
from fl_shuffle.cli.options import add_overrides, flag, option, overrides, show
from fl_shuffle.interrupts import load
from fl_shuffle.run_words import tell

SHORT = ("data", "budgets")
"""Whose short options it takes: `--seed` is the canaries', not the run's."""


def configure(parser: argparse.ArgumentParser) -> None:
    whose = "whose claims to test: a configuration's, or a run's"
    option(parser, "source", "CONFIG|RUN", whose)
    add_overrides(parser, SHORT)
    declare.add_options(parser, AuditSettings)
    flag(parser, "--json", "print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.configuration.reading import resolve_config

    # What is wrong with a configuration is said before PyTorch is loaded.
    config = resolve_config(arguments.source, overrides(arguments, SHORT))
    tell("loading PyTorch and Flower")
    load("fl_shuffle.auditing.audit")

    from fl_shuffle.auditing.audit import audit_configuration
    from fl_shuffle.threads import keep_one_thread

    given = AuditSettings(**declare.given(arguments, AuditSettings))
    keep_one_thread()
    report = audit_configuration(arguments.source, config, given, tell=tell)
    show((report.to_dict(), report.text().splitlines()), as_json=arguments.json)
    return 1 if report.breaks_proven else 0
