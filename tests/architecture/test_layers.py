"""Imports point downwards only, and each third-party library stays where it belongs."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = ("fl_shuffle", "clients", "server", "benchmarks")

# A module may import modules of its own layer or of a lower number.
LAYERS = [
    [
        "fl_shuffle.errors",
        "fl_shuffle.version",
        "fl_shuffle.lazy",
        "fl_shuffle.durable_files",
        "fl_shuffle.interrupts",
    ],
    ["fl_shuffle.csv_files", "fl_shuffle.scaffold"],
    [
        "fl_shuffle.accounting.guarantee",
        "fl_shuffle.accounting.tolerances",
        "fl_shuffle.accounting.limits",
        "fl_shuffle.accounting.other_processes",
        "fl_shuffle.accounting.attack_tolerances",
        "fl_shuffle.accounting.partial_shuffle_tolerances",
        "fl_shuffle.accounting.sum_tolerances",
    ],
    ["fl_shuffle.accounting.laws"],
    ["fl_shuffle.accounting.engine"],
    ["fl_shuffle.accounting.bounds"],
    ["fl_shuffle.accounting.rounds"],
    ["fl_shuffle.accounting.attacks"],
    ["fl_shuffle.accounting.accountant", "fl_shuffle.accounting.columns"],
    ["fl_shuffle.accounting.queries"],
    ["fl_shuffle.accounting"],
    ["fl_shuffle.plugins", "fl_shuffle.threads", "fl_shuffle.seeds", "fl_shuffle.compiled"],
    ["fl_shuffle.configuration"],
    ["fl_shuffle.budgets"],
    ["fl_shuffle.randomizers", "fl_shuffle.gradients"],
    [
        "fl_shuffle.estimators",
        "fl_shuffle.randomizer_plan",
        "fl_shuffle.aggregation",
    ],
    ["fl_shuffle.planned_noise"],
    ["fl_shuffle.auditing", "fl_shuffle.ledger", "fl_shuffle.shuffling"],
    ["fl_shuffle.flower"],
    ["fl_shuffle.run_words"],
    ["fl_shuffle.runs", "fl_shuffle.report"],
    ["fl_shuffle.trackers"],
    ["fl_shuffle.tasks"],
    ["fl_shuffle.apps"],
    ["fl_shuffle.simulation.launch", "fl_shuffle.simulation.progress"],
    ["fl_shuffle.simulation"],
    ["fl_shuffle.sweeps"],
    ["fl_shuffle.api"],
    ["fl_shuffle"],
    ["fl_shuffle.cli"],
    ["fl_shuffle.starting"],
    ["fl_shuffle.tasks", "fl_shuffle.apps", "fl_shuffle.api", "clients", "server"],
    ["benchmarks"],
]

# Which packages may import a library that is costly, or that would tie a layer down.
CONFINED = {
    "flwr": (
        "fl_shuffle.flower",
        "fl_shuffle.simulation.launch",
        "fl_shuffle.simulation.twin_runs",
        "fl_shuffle.tasks",
        "fl_shuffle.apps",
        "fl_shuffle.api",
        "clients",
        "server",
    ),
    "torch": (
        "fl_shuffle.randomizers",
        "fl_shuffle.gradients",
        "fl_shuffle.aggregation.shuffler",
        "fl_shuffle.aggregation.optimizer",
        "fl_shuffle.aggregation.robust",
        "fl_shuffle.seeds",
        "fl_shuffle.planned_noise",
        "fl_shuffle.auditing",
        "fl_shuffle.ledger.run_book",
        "fl_shuffle.flower",
        "fl_shuffle.runs",
        "fl_shuffle.trackers.tensorboard_tracker",
        "fl_shuffle.simulation.launch",
        "fl_shuffle.threads",
        "fl_shuffle.tasks.sources.torchvision_datasets",
        "fl_shuffle.cli.audit",
        "fl_shuffle.tasks",
        "fl_shuffle.apps",
        "fl_shuffle.api",
        "clients",
        "server",
    ),
    "torchvision": ("fl_shuffle.tasks.sources.torchvision_datasets",),
    "opacus": ("fl_shuffle.gradients",),
    "dp_accounting": ("fl_shuffle.accounting.engine.dp_accounting_export", "fl_shuffle.api.bounds"),
    "ray": ("fl_shuffle.flower.on_ray.pool",),
    "grpc": ("fl_shuffle.shuffling",),
    "numba": ("fl_shuffle.compiled",),
    "llvmlite": ("fl_shuffle.compiled",),
}


def modules() -> dict[str, Path]:
    found = {}
    for package in TOP:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path
    return found


MODULES = modules()
PRODUCT = [name for name in MODULES if name.split(".")[0] != "benchmarks"]


@cache
def imports(path: Path) -> set[str]:
    """Every absolute module named by an import, inside functions too; type-only imports count."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in MODULES else node.module)
    return names


def layer(name: str) -> int:
    best, rank = "", -1
    for index, members in enumerate(LAYERS):
        for member in members:
            inside = name == member or (name.startswith(member + ".") and member != "fl_shuffle")
            if inside and len(member) > len(best):
                best, rank = member, index
    assert rank >= 0, f"{name} has no layer: give it one in LAYERS"
    return rank


def test_every_module_has_a_layer() -> None:
    assert len(MODULES) > 20
    for name in MODULES:
        layer(name)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_downwards(name: str) -> None:
    for imported in imports(MODULES[name]):
        if imported.split(".")[0] in TOP:
            # The command and the display name types of higher layers only inside functions.
            assert layer(imported) <= layer(name), f"{name} imports {imported}, a higher layer"


@pytest.mark.parametrize("name", sorted(PRODUCT))
def test_libraries_stay_where_they_belong(name: str) -> None:
    for imported in imports(MODULES[name]):
        allowed = CONFINED.get(imported.split(".")[0])
        if allowed is not None:
            inside = any(name == place or name.startswith(place + ".") for place in allowed)
            assert inside, f"{name} imports {imported}"


def test_a_violation_would_be_seen(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from fl_shuffle.cli import main\n    return main\n")
    assert imports(bad) == {"fl_shuffle.cli"}
    assert layer("fl_shuffle.cli") > layer("fl_shuffle.accounting.guarantee")
