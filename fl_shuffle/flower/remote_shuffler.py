"""A shuffler of its own, in Flower's terms: a node's way to it, the server's, and the facts that
both go by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Message

from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError
from fl_shuffle.flower.messages import REQUEST_RECORD, record_in
from fl_shuffle.randomizers.calibration import Calibration
from fl_shuffle.shuffler.remote.agreement import Agreement, require_run
from fl_shuffle.shuffler.remote.client import RUN
from fl_shuffle.shuffler.remote.credentials import Pass, read_key
from fl_shuffle.shuffler.remote.link import Link, Sender

SHUFFLER = "shuffler"
"""In a node's configuration its site's pass, in the server's run configuration the analyzer's."""
ANALYZER_KEY = "analyzer-key"
"""In a node's configuration the analyzer's public key, in the server's run configuration the
private one: files, all of them."""


def agreement_of(run: str, config: Config, plan: Calibration, dimension: int) -> Agreement:
    """Return what this run's parties agree on: each computes it from the public configuration.

    Raises `ConfigError` for reports of few bits whose levels differ between clients: the party that
    opens a report does not know its sender.
    """
    exponent = math.frexp(float(plan.step.min()))[1] - 1  # steps are powers of two
    few_bits = plan.few_bits
    if few_bits is not None and np.ptp(few_bits.half):
        raise ConfigError(
            f"privacy.report_bits = {few_bits.bits}: with privacy.shuffler = 'separate' all "
            "clients need the same noise; set privacy.personalization = 'clipping', or give all "
            "clients one budget"
        )
    return Agreement(
        run=run,
        release=config.privacy.release,
        clients=config.data.clients,
        dimension=dimension,
        min_reports=config.privacy.min_reports,
        exponent=exponent,
        largest=math.ceil(float(plan.largest.max()) / 2.0**exponent),
        batches=plan.reports_per_round,
        bits=0 if few_bits is None else few_bits.bits,
        half=0 if few_bits is None else round(float(few_bits.half[0]) / 2.0**exponent),
    )


def sender_of(config: Config, node_config: Mapping[str, object]) -> Sender | None:
    """Return a node's way to its shuffler; None where the server is the shuffler, too.

    What the node's own configuration says stands above the run's, which the server writes: raises
    `ConfigError` if a node that has a shuffler is asked for reports without, or one that has none
    is asked to use it.
    """
    own, key = node_config.get(SHUFFLER), node_config.get(ANALYZER_KEY)
    separate = config.privacy.shuffler == "separate"
    if own is None:
        if separate:
            raise ConfigError(
                "privacy.shuffler = 'separate': this node knows no shuffler; start it with "
                f'--node-config \'{SHUFFLER}="/path/site.json" {ANALYZER_KEY}="/path/key.pub"\''
            )
        return None
    if not separate:
        raise ConfigError(
            f"privacy.shuffler = {config.privacy.shuffler!r}: this node hands reports to its own "
            "shuffler and to nobody else; use 'separate'"
        )
    if config.privacy.release != "sum" and key is None:
        raise ConfigError(f"node-config names a {SHUFFLER} and no {ANALYZER_KEY}")
    site = Pass.read(_file(SHUFFLER, own), "site")
    if config.privacy.release == "sum":  # the shuffler opens the reports, to add them up
        return Sender(site, bytes.fromhex(site.key), config.run.timeout)
    public = read_key(_file(ANALYZER_KEY, key), private=False)
    return Sender(site, public, config.run.timeout)


def link_of(config: Config, run_config: Mapping[str, object]) -> tuple[Link, bytes] | None:
    """Return the server's way to its shuffler, and the analyzer's private key (empty where only
    sums leave); None where the server is the shuffler. Raises `ConfigError` for half of it."""
    own, key = str(run_config.get(SHUFFLER, "")), str(run_config.get(ANALYZER_KEY, ""))
    if config.privacy.shuffler != "separate":
        if own or key:
            raise ConfigError(
                f"--run-config names a {SHUFFLER if own else ANALYZER_KEY}, and privacy.shuffler = "
                f"{config.privacy.shuffler!r} uses none; set it to 'separate'"
            )
        return None
    one_by_one = config.privacy.release == "reports"
    missing = [name for name, value in ((SHUFFLER, own), (ANALYZER_KEY, key)) if not value]
    if not own or (one_by_one and not key):
        raise ConfigError(
            f"privacy.shuffler = 'separate': --run-config names no {missing[0]}; start the run "
            f"with flwr run and the analyzer's files, see docs/how-to/separate-shuffler.md"
        )
    private = read_key(_file(ANALYZER_KEY, key), private=True) if one_by_one else b""
    return Link(Pass.read(_file(SHUFFLER, own), "analyzer"), config.run.timeout), private


def _file(name: str, value: object) -> Path:
    path = Path(str(value))
    if not isinstance(value, str) or not path.is_absolute():
        raise ConfigError(f"{name} = {value!r}: must be an absolute file name")
    return path


def run_named_in(message: Message) -> str:
    """Return the identifier of the run that a request is part of; raises `InvalidValueError`."""
    request = record_in(message.content, REQUEST_RECORD, ConfigRecord)
    return require_run(None if request is None else request.get(RUN))
