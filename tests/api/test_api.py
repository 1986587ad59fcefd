"""`import fl_shuffle as fs`: what it costs, what it offers, and what its results say; names that
installed packages offer for parts."""

from __future__ import annotations

import doctest
import importlib
import re
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import fl_shuffle as fs
from fl_shuffle._internal import plugins
from fl_shuffle.configuration.reading import SETTINGS, resolve_config, value_of
from fl_shuffle.errors import ConfigError, InvalidValueError, RunError
from fl_shuffle.flower.strategy import RoundOutcome
from tests.processes import printed
from tests.repository import FILES, ROOT
from tests.small_federation import SMALL

OWN = "tests.cli.own_parts:too_quiet"
CONFIG = tomllib.loads(SMALL)


def documented() -> list[str]:
    own = [path for path in FILES if path.is_relative_to(ROOT / "fl_shuffle")]
    named = [path.relative_to(ROOT).with_suffix("") for path in own if ">>> " in path.read_text()]
    return [".".join(name.parts).removesuffix(".__init__") for name in named]


@pytest.mark.parametrize("name", documented())
def test_examples_in_docstrings_are_true(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0 and failed == 0


def test_the_package_and_help_load_no_library() -> None:
    code = """
import sys, fl_shuffle, fl_shuffle.accounting as a
from fl_shuffle.cli.parsers import SUBCOMMANDS, parser_of
assert fl_shuffle.__version__ and "simulate" in dir(fl_shuffle) and "bound" in dir(a)
assert [parser_of(name) for name in SUBCOMMANDS]
print({"numpy", "scipy", "torch", "flwr", "numba", "matplotlib", "rich"} & set(sys.modules))
"""
    assert printed(sys.executable, "-c", code).strip() == "set()"


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [
        ("fl_shuffle", "Question", "BoundQuery"),
        ("fl_shuffle", "Solved", "SolveResult"),
        ("fl_shuffle.api", "Question", "BoundQuery"),
        ("fl_shuffle.accounting", "Question", "BoundQuery"),
    ],
)
def test_old_name_works_and_warns_with_the_new(package: str, old: str, new: str) -> None:
    module = importlib.import_module(package)
    with pytest.warns(DeprecationWarning, match=f"{package}.{old} is now called {package}.{new}"):
        assert getattr(module, old) is getattr(module, new)
    assert old not in dir(module)


def test_the_accountant_needs_numpy_and_scipy_only() -> None:
    code = """
import importlib, pkgutil, sys
import fl_shuffle.accounting as accounting

names = [m.name for m in pkgutil.walk_packages(accounting.__path__, "fl_shuffle.accounting.")]
loaded = [importlib.import_module(name) for name in names]
asked = {"randomizer": "gaussian", "epsilon0": 1.0, "delta0": 1e-5, "clients": 1000, "delta": 1e-6}
found = accounting.bound(accounting.BoundQuery(**asked))
installed = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(len(names), found.status, [name for name in installed if name.lstrip("_").isidentifier()])
"""
    count, status, loaded = printed(sys.executable, "-c", code).split(maxsplit=2)
    assert int(count) > 40 and status == "proven"
    others = {"torch", "flwr", "numba", "dp_accounting", "sklearn", "rich", "matplotlib", "mpmath"}
    assert not others & set(re.findall(r"\w+", loaded)), loaded


def test_a_run_from_tables(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[RoundOutcome] = []
    result = fs.simulate(
        CONFIG, overrides={"run.rounds": 2}, out=tmp_path / "run", on_round=seen.append
    )
    assert [outcome.round_number for outcome in seen] == [1, 2]
    assert result.directory == tmp_path / "run"
    assert result.metrics["round"].tolist() == [1, 2]
    assert result.metrics["shuffled_epsilon"][-1] == pytest.approx(result.epsilon)
    assert result.accuracy == pytest.approx(result.metrics["accuracy"][-1])
    assert result.config.run.rounds == 2
    assert capfd.readouterr() == ("", "")

    bills = [result.ledger.client(number) for number in range(len(result.ledger))]
    assert len(bills) == 12 and all(bill.rounds == 2 for bill in bills)
    assert max(bill.epsilon for bill in bills) == pytest.approx(result.epsilon)
    assert all(bill.epsilon <= bill.local_epsilon for bill in bills)
    with pytest.raises(InvalidValueError, match="client"):
        result.ledger.client(12)
    with pytest.raises(RunError, match="not a run directory"):
        fs.Result(tmp_path)

    page = result.report(tmp_path / "page.html")
    assert page == tmp_path / "page.html" and "<html" in page.read_text(encoding="utf-8")

    saved, held = load_file(result.directory / "model.safetensors"), result.model.state_dict()
    assert saved.keys() == held.keys()
    assert all(bool((saved[name] == held[name]).all()) for name in saved)


def test_file_tables_and_config_are_one_run(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text("run = { rounds = 3, seed = 5 }", encoding="utf-8")
    tables = {"run": CONFIG["run"]}
    found = [resolve_config(each) for each in (file, str(file), tables, resolve_config(tables))]
    assert all(each == found[0] for each in found)


def test_bad_sources_and_overrides_say_what_is_wrong() -> None:
    bad: list[tuple[Any, dict[str, object], str]] = [
        (CONFIG, {"run.round": 2}, "rounds"),
        (CONFIG, {"rounds": 2}, "section.key"),
        (CONFIG, {"run.rounds": object()}, "run.rounds = <object"),
        (17, {}, "a path, a dict or a Config"),
    ]
    for source, overrides, message in bad:
        with pytest.raises(fs.FlShuffleError, match=message):
            fs.simulate(source, overrides=overrides)


def test_missing_numbers_are_nan(tmp_path: Path) -> None:
    """Nothing is proven of sums of a user's own randomizer; round 1 is not evaluated."""
    overrides = {"run.rounds": 2, "run.evaluate_every": 2, "privacy.randomizer": OWN}
    result = fs.simulate(CONFIG, overrides=overrides, out=tmp_path / "run")
    assert resolve_config(tmp_path / "run") == result.config
    assert np.isnan(result.sum_epsilon) and np.isnan(result.metrics["accuracy"][0])


@pytest.mark.parametrize("randomizer", ["gaussian", "laplace"])
def test_a_clients_bill_in_the_words_of_dp_accounting(randomizer: str, tmp_path: Path) -> None:
    """Budgets are mixed, rounds were missed, and who never took part has spent nothing."""
    pytest.importorskip("dp_accounting")
    result = fs.simulate(
        CONFIG,
        overrides={
            "run.rounds": 2, "data.clients": 24, "budgets.levels": 2, "privacy.release": "sum",
            "training.participation": 0.3, "privacy.randomizer": randomizer,
        },
        out=tmp_path / "run",
    )  # fmt: skip
    taken = result.ledger.record.totals.rounds
    assert taken.min() == 0 < taken.max()
    for client in (int(taken.argmin()), int(taken.argmax())):
        law = result.to_dp_accounting(client=client)
        own = result.ledger.client(client).epsilon
        theirs = law.get_epsilon_for_delta(result.delta)
        # What its curve says; the ledger also knows of the client's own noise alone.
        assert own <= theirs * (1 + 1e-6) and theirs <= 1.1 * own
        twice = law.compose(law).get_epsilon_for_delta(result.delta)
        assert theirs < twice <= 2.0 * theirs or own == 0.0
    with pytest.raises(InvalidValueError, match="client = 24"):
        result.to_dp_accounting(client=24)


GROUPED = {
    key: f"fl_shuffle.{each.own}"
    for key, each in SETTINGS.items()
    if each.own not in ("", "module")
}


def offer(patch: pytest.MonkeyPatch, **paths: str) -> None:
    """Have installed packages offer names, each in every group of parts, as these paths."""

    def entry_points(*, group: str) -> list[EntryPoint]:
        assert group in GROUPED.values()
        return [EntryPoint("own", path, group) for path in paths.values()]

    patch.setattr("importlib.metadata.entry_points", entry_points)


def test_a_name_stands_for_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(GROUPED) == 7
    offer(monkeypatch, one="their_package.parts:own")
    for key in GROUPED:
        assert value_of(resolve_config({}, {key: "own"}), key) == "their_package.parts:own"
        with pytest.raises(InvalidValueError, match="own"):  # lists what is offered
            resolve_config({}, {key: "onw"})


def test_a_name_offered_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, one="one:part", two="two:part")
    with pytest.raises(ConfigError, match="one:part and two:part"):
        resolve_config({"server": {"analyzer": "own"}})


def test_a_folder_here_stands_in_for_nothing_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, here = tmp_path / "installed", tmp_path / "here"
    for place in (installed, here):
        (place / "found_twice").mkdir(parents=True)
        (place / "found_twice" / "__init__.py").write_text(f"where = {place.name!r}\n")
    (here / "found_here.py").write_text("where = 'here'\n")
    (here / "fl_shuffle" / "builtin_apps" / "server").mkdir(parents=True)
    for name in (
        "__init__",
        "builtin_apps/__init__",
        "builtin_apps/server/__init__",
        "builtin_apps/server/app",
    ):
        (here / "fl_shuffle" / f"{name}.py").write_text("app = 'another'\n")
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    for name in ("found_twice", "found_here"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(sys.modules, "fl_shuffle.builtin_apps.server.app", raising=False)
    assert plugins.load_attribute("found_twice:where", field="app.server") == "installed"
    assert plugins.load_attribute("found_here:where", field="app.server") == "here"
    own = resolve_config({}).app.server
    assert plugins.load_attribute(own, field="app.server") != "another"
