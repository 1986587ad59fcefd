"""`fl-shuffle audit`: try to break a configuration's privacy claims with canaries."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fl_shuffle.cli.overrides import add_overrides
from fl_shuffle.interrupts import load
from fl_shuffle.simulation.audit import audit_configuration
from fl_shuffle.simulation.progress import say, tell

if TYPE_CHECKING:
    from fl_shuffle.auditing.audit import AuditSettings
    from fl_shuffle.auditing.findings import AuditReport, Check, Finding
    from fl_shuffle.configuration.sections import Config

SUMMARY = "Try to break the privacy claims with canaries: empirical lower bounds on epsilon."

DEFAULT_TRIALS = 1000
"""As many as `AuditSettings` takes."""
DEFAULT_REPORTS = 1_000_000
"""As many as `AuditSettings` takes."""
SHOWN_LEAKS = 3
"""Differences between neighbouring runs that are printed; the JSON output has all."""


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
    parser.add_argument("--data", metavar="DIR", help="folder that holds the data (MNIST/raw)")
    parser.add_argument(
        "--trials", type=int, metavar="N", help=f"whole rounds to play (default {DEFAULT_TRIALS})"
    )
    parser.add_argument(
        "--reports",
        type=int,
        metavar="N",
        help=f"single reports to draw per dataset (default {DEFAULT_REPORTS})",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        metavar="P",
        help="of all lower bounds of an audit together (default 0.95)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=100.0,
        metavar="S",
        help="stop playing after about S seconds (default 100)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the canaries")
    parser.add_argument("--json", action="store_true", help="print one JSON object per audit")


def run(arguments: argparse.Namespace) -> int:
    from fl_shuffle.errors import ConfigError

    if arguments.cases and (arguments.source or arguments.set or arguments.data):
        raise ConfigError("--cases brings its own configurations; give no other, nor overrides")
    if not (arguments.cases or arguments.source):
        raise ConfigError("name a configuration or a run's folder, or pass --cases")
    # What is wrong with a configuration is said before PyTorch is loaded.
    config = None if arguments.cases else _configuration(arguments)
    tell("loading PyTorch and Flower")
    load("fl_shuffle.simulation.launch", "fl_shuffle.auditing.audit")

    from fl_shuffle.api.audits import audit
    from fl_shuffle.auditing.audit import AuditSettings
    from fl_shuffle.threads import keep_one_thread

    given = AuditSettings(
        trials=DEFAULT_TRIALS if arguments.trials is None else arguments.trials,
        reports=DEFAULT_REPORTS if arguments.reports is None else arguments.reports,
        confidence=arguments.confidence,
        seconds=arguments.seconds,
        seed=arguments.seed,
    )
    if config is None:
        keep_one_thread()
        return _run_cases(arguments, given)
    report = audit(config, name=arguments.source, on_progress=tell, **asdict(given))
    _show(report, as_json=arguments.json, short=False)
    return 1 if report.breaks_proven else 0


def _tell_of(tell: Callable[[str], None], name: str, text: str) -> None:
    tell(f"{name}: {text}")


def _run_cases(arguments: argparse.Namespace, given: AuditSettings) -> int:
    import dataclasses

    from fl_shuffle.auditing.cases import canned_cases

    cases = canned_cases()
    reports = []
    for case in cases:
        settings = dataclasses.replace(
            given,
            trials=case.trials if arguments.trials is None else given.trials,
            reports=case.reports if arguments.reports is None else given.reports,
            seconds=given.seconds / len(cases),
        )
        reports.append(
            audit_configuration(
                case.name,
                case.config,
                settings,
                dimension=case.dimension,
                tell=partial(_tell_of, tell, case.name),
            )
        )
        _show(reports[-1], as_json=arguments.json, short=True)
    if not arguments.json:
        published = sum(report.breaks_published for report in reports)
        expected = sum(case.published_breaks for case in cases)
        proven = sum(report.breaks_proven for report in reports)
        say(
            f"published mu broken in {published} of {len(cases)} cases ({expected} expected); "
            f"proven bound contradicted in {proven}"
        )
    return 1 if any(report.breaks_proven for report in reports) else 0


def _configuration(arguments: argparse.Namespace) -> Config:
    from fl_shuffle.api.configs import configured

    settings = list(arguments.set)
    if arguments.data:
        settings.append(f"data.root={json.dumps(str(Path(arguments.data).resolve()))}")
    return configured(arguments.source, settings)


def _show(report: AuditReport, *, as_json: bool, short: bool) -> None:
    if as_json:
        print(json.dumps(report.to_dict(), allow_nan=False), flush=True)
        return
    say(
        f"{report.name}: {report.clients:,} clients, d = {report.dimension:,}, {report.noise}, "
        f"unit = {report.unit}, replace-one, confidence {report.confidence:.0%}"
    )
    if report.clipping is not None:
        say(
            f"  hostile records through the run's own model: a mean of "
            f"{report.clipping.radius:.4f} of the assumed radius, moved by "
            f"{report.clipping.move:.4f} of the assumed sensitivity"
        )
    if report.recognition:
        say(
            f"  budget classes told apart by report size: {report.recognition['accuracy']:.4%} of "
            f"{report.recognition['reports_classified']:,} reports right"
        )
    for line in _published_lines(report):
        say(f"  {line}")
    for check in report.checks:
        if not short or check.refuted:
            for line in _check_lines(check):
                say(f"  {line}")
    for finding in report.findings:
        if (
            short
            and finding.verdict == "does not contradict the proven bound"
            and not _best(finding, report)
        ):
            continue
        for line in _lines(finding):
            say(f"  {line}")
    for note in report.notes:
        say(f"  note: {note}")
    say(
        f"  => published mu {'BROKEN' if report.breaks_published else 'not broken'}; proven bound "
        f"{'CONTRADICTED' if report.breaks_proven else 'not contradicted'} "
        f"({report.seconds:.1f} s)"
    )


def _published_lines(report: AuditReport) -> list[str]:
    found = report.published
    if found is None:
        return []
    what = (
        f"{found.fields:,} published fields and {found.messages:,} messages of runs on "
        f"{len(found.neighbours)} neighbouring data sets, reports made equal: "
    )
    notes = [f"    {text}" for text in found.notes]
    if not found.differences:
        return [what + "no difference but times", *notes]
    lines = [what + f"{len(found.differences):,} DIFFERENCES: no guarantee covers them"]
    for name in found.neighbours:
        leaks = [leak for leak in found.differences if leak.neighbour == name]
        lines += [f"    {leak.text()}" for leak in leaks[:SHOWN_LEAKS]]
        if len(leaks) > SHOWN_LEAKS:
            lines.append(f"      and {len(leaks) - SHOWN_LEAKS:,} more (all with --json)")
    return lines + notes


def _check_lines(check: Check) -> list[str]:
    note = f"; {check.note}" if check.note else ""
    return [
        f"{check.game}: {check.verdict}",
        f"    p = {_number(check.p_value)}, refuted at {_number(check.level)}",
        f"    {check.method}; {check.plays:,} rounds; power: {check.power}{note}",
    ]


def _best(finding: Finding, report: AuditReport) -> bool:
    """Whether this finding comes nearest to the published number of its audit."""
    tested = [other for other in report.findings if other.points[0].published is not None]
    return bool(tested) and finding is max(tested, key=_closeness)


def _closeness(finding: Finding) -> float:
    point = finding.points[0]
    return point.lower / point.published if point.published else 0.0


def _lines(finding: Finding) -> list[str]:
    point = finding.witness
    rounds = "1 round" if finding.rounds == 1 else f"{finding.rounds} rounds"
    power = f"these plays could prove at most epsilon {_number(finding.ceiling)}"
    if finding.detectable is not None:
        power = (
            f"would have caught noise {_number(finding.detectable)} times too small"
            if finding.detectable < math.inf
            else "none against the proven bound, which is far above what these plays can prove"
        )
    note = f"; {finding.note}" if finding.note else ""
    published = "-" if point.published is None else _number(point.published)
    proven = "-" if point.proven is None else _number(point.proven)
    return [
        f"{finding.game}, {rounds}: {finding.verdict}",
        f"    at delta {point.delta:g}: epsilon >= {_number(point.lower)} measured, "
        f"{finding.column} <= {proven}, published {published}",
        f"    {finding.method}; {finding.plays:,} plays per dataset; power: {power}{note}",
    ]


def _number(value: float) -> str:
    return f"{value:.4g}"
