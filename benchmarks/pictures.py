"""Draws pictures of the documents' pages, and writes the data of each beside it as CSV.

    python -m benchmarks.pictures

`scripts/generate --pictures` runs it. It takes some minutes with an empty cache.
"""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fl_shuffle as fs
from benchmarks.turns import ROOT
from fl_shuffle.cli import main as command
from fl_shuffle.configuration.reading import resolve_config

DOCS = ROOT / "docs"
ROUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
QUERY: dict[str, Any] = {
    "randomizer": "gaussian", "epsilon0": 1.0, "delta0": 1e-5, "clients": 10_000, "unit": "client",
    "delta": 1e-6,
}  # fmt: skip
"""What the picture of composition is about."""
CLIENTS = (50, 100, 200, 400, 718, 1400)
"""Numbers of clients in the picture of noise, at most as many as the digits have records."""
POLICY_BUDGETS = "uniform on [0.01, 1]"
"""The rows of the table of policies that are drawn."""
FACTORS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Times the quickstart's clipping norm, in the picture of clipping norms."""
SEEDS = (1, 2, 3)


def main() -> None:
    composition(DOCS / "concepts" / "composition")
    policies(DOCS / "concepts" / "budget-policies")
    labels(DOCS / "how-to" / "non-iid")
    noise(DOCS / "how-to" / "choose-settings")
    clipping(DOCS / "how-to" / "clipping-norm")


def composition(stem: Path) -> None:
    """Epsilon by number of rounds: composed, its lower bound, and one round's epsilon times T."""
    one = fs.bound(**QUERY).epsilon
    rows = [
        (
            rounds,
            fs.bound(**QUERY, rounds=rounds, method="vector").epsilon,
            fs.bound(**QUERY, rounds=rounds, method="attack").epsilon,
            one * rounds,
        )
        for rounds in ROUNDS
    ]
    _write(stem, ("rounds", "proven", "lower bound", "one round times rounds"), rows)
    pyplot = _pyplot(stem.name)
    figure, axes = pyplot.subplots(figsize=(6.5, 4.0))
    for place, (name, style) in enumerate(
        (
            ("proven, composed", "o-"),
            ("lower bound (attack)", "k+"),
            ("one round's epsilon times T", "x:"),
        ),
        start=1,
    ):
        axes.loglog([row[0] for row in rows], [row[place] for row in rows], style, label=name)
    axes.set_xlabel("rounds T")
    axes.set_ylabel(f"epsilon at delta = {QUERY['delta']:g}")
    _save(figure, axes, stem)


def policies(stem: Path) -> None:
    """Epsilons of the most exposed and the median client by policy, as the page's table has them:
    its rows are what `scripts/bench policies` prints."""
    rows = []
    for line in stem.with_suffix(".md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == POLICY_BUDGETS:
            pairs = [re.findall(r"[\d.]+", cell) for cell in cells[3:5]]
            rows.append((cells[1], *(float(each) for pair in pairs for each in pair)))
    heads = (
        "policy", "reports: most exposed", "reports: median", "sums: most exposed", "sums: median",
    )  # fmt: skip
    _write(stem, heads, rows)
    pyplot = _pyplot(stem.name)
    figure, axes = pyplot.subplots(figsize=(7.0, 3.2))
    height = 0.2
    for place, name in enumerate(heads[1:]):
        at = [number + (place - 1.5) * height for number in range(len(rows))]
        axes.barh(at, [row[place + 1] for row in rows], height, label=name)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("epsilon at delta = 1e-5, after 50 rounds")
    _save(figure, axes, stem)


def noise(stem: Path) -> None:
    """Noise of the mean and headline epsilon by number of clients, of the quickstart's budgets."""
    rows = []
    for clients in CLIENTS:
        cost = fs.cost("quickstart", overrides={"data.clients": clients})
        rows.append((clients, cost.noise_of_mean, max(each.epsilon for each in cost.classes)))
    _write(stem, ("clients", "noise of the mean (clipping norms)", "epsilon"), rows)
    pyplot = _pyplot(stem.name)
    figure, axes = pyplot.subplots(figsize=(6.5, 4.0))
    numbers = [row[0] for row in rows]
    axes.loglog(numbers, [row[1] for row in rows], "o-", label="noise of the mean, clipping norms")
    axes.loglog(numbers, [row[2] for row in rows], "s--", label="epsilon of all rounds, proven")
    axes.set_xlabel("clients")
    _save(figure, axes, stem)


def clipping(stem: Path) -> None:
    """Test accuracy of the quickstart by clipping norm, with the learning rate in either unit; its
    own learning rate is the same step in both. Means over the seeds, in percent."""
    config = resolve_config("quickstart")
    norm, rate = config.privacy.clip_norm, config.server.learning_rate
    units = {"absolute": rate, "clipping-norm": rate * norm}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for factor in FACTORS:
            means = []
            for unit, step in units.items():
                changes = {
                    "privacy.clip_norm": factor * norm,
                    "server.learning_rate": step,
                    "server.learning_rate_unit": unit,
                }
                accuracies = [
                    fs.simulate(
                        "quickstart",
                        overrides={**changes, "run.seed": seed},
                        out=f"{folder}/{factor}-{unit}-{seed}",
                    ).accuracy
                    for seed in SEEDS
                ]
                means.append(100.0 * sum(each or 0.0 for each in accuracies) / len(SEEDS))
            rows.append((factor * norm, *means))
    heads = "clipping norm", "accuracy (absolute)", "accuracy (clipping-norm)"
    _write(stem, heads, rows)
    pyplot = _pyplot(stem.name)
    figure, axes = pyplot.subplots(figsize=(6.5, 4.0))
    norms = [row[0] for row in rows]
    axes.semilogx(norms, [row[2] for row in rows], "o-", label="rate in clipping norms")
    axes.semilogx(norms, [row[1] for row in rows], "s--", label="absolute rate")
    axes.set_xlabel("clipping norm")
    axes.set_ylabel("test accuracy, percent")
    _save(figure, axes, stem)


def labels(stem: Path) -> None:
    """What `fl-shuffle data` draws of the page's own configuration."""
    found = re.search(
        r"<!-- file: skewed\.toml -->\n```toml\n(.*?)```",
        stem.with_suffix(".md").read_text("utf-8"),
        re.DOTALL,
    )
    if found is None:
        raise ValueError(f"{stem}.md has no file skewed.toml")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "skewed.toml"
        config.write_text(found[1], encoding="utf-8")
        for form in ("svg", "csv"):
            if command(["data", str(config), "--plot", f"{stem}.{form}"]):
                raise ValueError(f"{stem}.{form} was not made")
            made = Path(f"{stem}.{form}")
            # Line ends as the repository has them, and a mode that everybody may read.
            made.write_text(made.read_text("utf-8"), encoding="utf-8", newline="\n")
            made.chmod(0o644)


def _write(stem: Path, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with stem.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(
            [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows
        )


def _pyplot(salt: str) -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": salt, "svg.fonttype": "none"})
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, axes: Any, stem: Path) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(
        stem.with_suffix(".svg"), format="svg", metadata={"Date": None}, bbox_inches="tight"
    )


if __name__ == "__main__":
    main()
