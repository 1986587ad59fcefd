"""`fl-shuffle audit`: try to break a configuration's privacy claims with canaries."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from fl_shuffle import declare
from fl_shuffle.auditing.effort import AuditSettings
from fl_shuffle.cli.overrides import add_overrides, add_short_options, short_options
from fl_shuffle.interrupts import load
from fl_shuffle.run_words import say, tell

if TYPE_CHECKING:
    from fl_shuffle.auditing.findings import AuditReport

SHORT = ("data", "budgets")
"""Whose short options it takes: `--seed` is the canaries', not the run's."""
SUMMARY = "Try to break the privacy claims with canaries: empirical lower bounds on epsilon."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="CONFIG.toml|RUN_DIR", nargs="?", help="whose claims to test"
    )
    parser.add_argument(
        "--cases",
        action="store_true",
        help="canned federations on which published numbers break, and on which they hold",
    )
    add_overrides(parser)
    add_short_options(parser, SHORT)
    declare.add_options(parser, AuditSettings)
    parser.add_argument("--json", action="store_true", help="print one JSON object per audit")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.api.configs import configured
    from fl_shuffle.errors import ConfigError

    settings = [*arguments.set, *short_options(arguments, SHORT)]
    if arguments.cases and (arguments.source or settings):
        raise ConfigError("--cases brings its own configurations; give no other, nor overrides")
    if not (arguments.cases or arguments.source):
        raise ConfigError("name a configuration or a run's folder, or pass --cases")
    # What is wrong with a configuration is said before PyTorch is loaded.
    config = None if arguments.cases else configured(arguments.source, settings)
    tell("loading PyTorch and Flower")
    load("fl_shuffle.auditing.audit")

    from fl_shuffle.auditing.audit import audit_configuration
    from fl_shuffle.threads import keep_one_thread

    given = AuditSettings(**declare.given(arguments, AuditSettings))
    keep_one_thread()
    if config is None:
        return _run_cases(arguments, given)
    report = audit_configuration(arguments.source, config, given, tell=tell)
    _show(report, as_json=arguments.json)
    return 1 if report.breaks_proven else 0


def _run_cases(arguments: argparse.Namespace, given: AuditSettings) -> int:
    from fl_shuffle.auditing.audit import audit_configuration
    from fl_shuffle.auditing.cases import DIMENSION, canned_cases

    cases, reports = canned_cases(), []
    for case in cases:
        settings = dataclasses.replace(
            given,
            trials=case.trials if arguments.trials is None else given.trials,
            reports=case.reports if arguments.reports is None else given.reports,
            seconds=given.seconds / len(cases),
        )
        tell(case.name)
        found = audit_configuration(case.name, case.config, settings, dimension=DIMENSION)
        reports.append(found)
        _show(found, as_json=arguments.json, short=True)
    if not arguments.json:
        published = sum(report.breaks_published for report in reports)
        expected = sum(case.published_breaks for case in cases)
        proven = sum(report.breaks_proven for report in reports)
        say(
            f"published mu broken in {published} of {len(cases)} cases ({expected} expected); "
            f"proven bound contradicted in {proven}"
        )
    return 1 if any(report.breaks_proven for report in reports) else 0


def _show(report: AuditReport, *, as_json: bool, short: bool = False) -> None:
    if as_json:
        print(json.dumps(report.to_dict(), allow_nan=False), flush=True)
    else:
        say(*report.text(short=short).splitlines())
