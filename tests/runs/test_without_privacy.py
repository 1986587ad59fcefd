"""A baseline without privacy: its updates are plain ones, no column claims anything, and it is for
simulations alone."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

import fl_shuffle as fs
from clients.app import app as client_app
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.unprotected import Unprotected
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.data.models import flatten_parameters
from fl_shuffle.errors import ConfigError, InvalidValueError, NotApplicableError
from fl_shuffle.federation.parts import Federation
from fl_shuffle.flower.messages import TrainRequest, array_record
from fl_shuffle.flower.private_api import adopt_task_identity
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.randomizers.unprotected import REACH, NoRandomizer
from fl_shuffle.report.page import render
from fl_shuffle.report.record import read_run
from fl_shuffle.runs.console_messages import PROTECTS_NOBODY
from fl_shuffle.shuffler.exact_sums import ExactSum
from server.app import app as server_app
from tests.federation.small_tasks import SIZES, configured, task_of
from tests.small_federation import Launch, Play, rows, summary

NONE = "privacy.randomizer=none"


def test_reports_are_the_clients_plain_gradients() -> None:
    """Of records that are far beyond every clip, against autograd without any."""
    for unit in ("client", "record"):
        config = configured(unit=unit, randomizer="none", clip_norm=1e-6)
        task = task_of(config)
        federation = Federation(config, task)
        model, everybody = federation.model(), np.arange(len(SIZES))
        means = federation.clipper(flatten_parameters(model), everybody, 1)
        found = federation.randomizer(means.clone(), everybody, 1)
        for client, (a, b) in enumerate(zip(task.offsets[:-1], task.offsets[1:], strict=True)):
            outputs = model(task.inputs[a:b])
            loss = torch.nn.functional.cross_entropy(outputs, task.labels[a:b])
            pieces = torch.autograd.grad(loss, list(model.parameters()))
            expected = torch.cat([each.flatten() for each in pieces])
            assert torch.allclose(found[client], expected, rtol=1e-5, atol=1e-6)
            assert float(expected.norm()) > 1e-3


@pytest.mark.parametrize("clients", [1, 2, 700, 4096])
def test_unprotected_reports_have_exact_sums(clients: int) -> None:
    """At the largest updates that leave, in any order, and to float32's own precision."""
    nothing = np.zeros(clients)
    local = NoRandomizer(nothing + math.inf, nothing, nothing + REACH)
    draws = torch.Generator().manual_seed(clients)
    sizes = 10.0 ** torch.randint(-4, 5, (clients, 3), generator=draws)
    means = (torch.randn(clients, 3, generator=draws) * sizes).clamp(-REACH, REACH)
    ids = np.arange(clients)
    reports = local.reports(means.clone(), ids, None)  # type: ignore[arg-type]
    assert torch.allclose(reports, means, rtol=2.0**-23, atol=float(local.grid()[0]))
    assert clients * float(local.largest().max()) < 2.0**53 * float(local.grid().min())
    totals = []
    for order in (torch.arange(clients), torch.randperm(clients, generator=draws)):
        total = ExactSum(3)
        assert total.add(reports[order], local.largest()).all()
        totals.append(total.total)
    assert torch.equal(*totals)


@pytest.mark.slow
def test_no_column_claims_anything(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    run = play("bare", NONE, quiet=False)
    lines = capsys.readouterr()
    header = [line for line in lines.err.splitlines() if "..." not in line]
    assert header[0] == PROTECTS_NOBODY and "proven" not in lines.out + lines.err
    assert re.search("^epsilon +inf", lines.out, re.M)
    for row in rows(run):
        assert not any(value for name, value in row.items() if "epsilon" in name or "mu" in name)
    final = summary(run)
    assert (final["epsilon"], final["headline"]) == (None, "none")
    assert final["warnings"][0] == PROTECTS_NOBODY and not final["assumptions"]
    assert {each["status"] for each in final["columns"].values()} == {"none"}
    assert {each["epsilon"] for each in final["columns"].values()} == {None}
    known = LedgerRecord(run)
    assert {each.noise for each in known.classes} == {"none"}
    assert {each.epsilon0 for each in known.classes} == {math.inf}
    assert known.recorded_spend is not None and np.isnan(known.recorded_spend[:, 1:]).all()
    assert known.recorded_spend[:, 0].tolist() == [3.0] * 12
    result = fs.Result(run)
    assert result.epsilon == math.inf and result.ledger.client(3).epsilon == math.inf
    assert (result.ledger.history().epsilon == math.inf).all()
    with pytest.raises(NotApplicableError, match="infinite"):
        result.to_dp_accounting(client=0)
    page = render([read_run(run)])
    assert "This run protects nobody" in page and "protected</dt>" in page
    assert 'data-key="headline"' not in page
    together = render([read_run(run), read_run(play("private"))])
    assert together.count("This run protects nobody") >= 1


@pytest.mark.slow
def test_commands_refuse_or_say_it_in_one_line(
    play: Play, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(play("bare", NONE))
    capsys.readouterr()
    for command, said in {
        ("ledger", run, "--recompute"): "the ledger says the same",
        ("ledger", run, "--client", "3"): "epsilon is infinite",
        ("bound", str(small), "--set", NONE): "epsilon is infinite",
        ("runs", run): "inf",
    }.items():
        assert main(list(command)) == 0
        assert said in "".join(capsys.readouterr())
    for command in (
        ("certify", run),
        ("audit", run),
        ("ledger", run, "--client", "3", "--check"),
        ("bound", str(small), "--set", NONE, "--solve-for", "rounds", "--epsilon", "1"),
        ("bound", str(small), "--set", NONE, "--grid", "budgets.levels=1,2"),
    ):
        assert main(list(command)) != 0
        (line,) = capsys.readouterr().err.splitlines()
        assert "none" in line


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"run": {"entropy": "system"}}, "real data"),
        ({"privacy": {"clipping": "update"}}, "clips nothing"),
        ({"privacy": {"client_clip_norm": 1.0}}, "clips nothing"),
        ({"privacy": {"personalization": "clipping"}}, "no noise to personalize"),
        ({"privacy": {"target_epsilon": 1.0}}, "infinite epsilon"),
        ({"privacy": {"lifetime_epsilon": 1.0}}, "infinite epsilon"),
        ({"privacy": {"reports_per_round": 2}}, "same report"),
        ({"budgets": {"of": "run"}}, "no total"),
        ({"server": {"weights": "inverse-variance"}}, "no noise to weigh"),
        ({"run": {"noise": "per-sum"}}, "run.noise"),
        ({"run": {"supernodes": "nodes.csv"}}, "simulations"),
    ],
)
def test_settings_that_a_baseline_cannot_have(settings: dict[str, Any], reason: str) -> None:
    tables: dict[str, Any] = {"privacy": {"unit": "client", "randomizer": "none"}}
    for section, own in settings.items():
        tables[section] = {**tables.get(section, {}), **own}
    with pytest.raises((ConfigError, InvalidValueError), match=reason):
        parse_config(tables)


def test_lifetime_budgets_are_refused(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets = tmp_path / "budgets.csv"
    lines = ["client_id,epsilon,delta,lifetime_epsilon"]
    budgets.write_text("\n".join([*lines, *(f"{n},1.0,1e-5,3.0" for n in range(12))]) + "\n")
    settings = ("budgets.distribution=file", f"budgets.file={budgets}")
    assert launch("limited", NONE, *settings) != 0
    assert "infinite epsilon" in capsys.readouterr().err


@pytest.mark.parametrize("node_config", [{}, {"partition-id": 0, "num-partitions": 1}], ids=str)
def test_a_node_that_is_not_simulated_sends_no_plain_update(node_config: dict[str, Any]) -> None:
    """Whatever the server's configuration says: no client of a deployment sends an update bare."""
    config = parse_config(
        {"privacy": {"unit": "client", "randomizer": "none"}, "data": {"clients": 4}}
    )
    run_config: dict[str, Any] = {RESOLVED: config.to_json(), "fl-shuffle-simulation": True}
    adopt_task_identity(7)
    message = TrainRequest(1, np.arange(4), False).message(
        array_record({"p": np.zeros(650, np.float32)}, shared=True), 3
    )
    context = Context(7, 3, node_config, RecordDict(), run_config)
    reply = client_app(message, context)
    assert reply.has_error() and str(reply.error.reason).startswith("ConfigError")
    with pytest.raises(ConfigError, match="fl-shuffle simulate"):
        server_app(None, context)  # type: ignore[arg-type]


def test_only_a_class_without_noise_has_an_infinite_budget() -> None:
    bare = ClientClass("none", 0.0, 1.0, 2.0, math.inf)
    assert bare.exposure == math.inf and ClassTable.of([bare])[0] == bare
    with pytest.raises(InvalidValueError, match="infinite"):
        ClientClass("none", 0.0, 1.0, 2.0, 1.0)
    for noise in ("gaussian", "user"):
        with pytest.raises(InvalidValueError, match="epsilon0"):
            ClientClass(noise, 1.0, 1.0, 2.0, math.inf)


def test_a_baselines_accountant_inherits_no_number() -> None:
    """What it does not define itself counts attendance, or calls what it does define."""
    shared = {
        "of", "class_counts", "commit", "take_back", "count", "client_totals", "library",
        "sums_are_bounded", "trust", "unasked", "lower_columns",
    }  # fmt: skip
    public = {name for name in vars(Accountant) if not name.startswith("_")}
    assert public - set(vars(Unprotected)) <= shared
