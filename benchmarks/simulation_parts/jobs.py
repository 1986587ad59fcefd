"""The jobs: sizes of federations, and the configuration and command that each engine gets."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FEATURES = 60
CLASSES = 10


@dataclass(frozen=True)
class Job:
    """`clients` with `records` each; softmax regression, or one hidden ReLU layer."""

    name: str
    clients: int
    records: int
    hidden: int = 0

    @property
    def dimension(self) -> int:
        if not self.hidden:
            return (FEATURES + 1) * CLASSES
        return (FEATURES + 1) * self.hidden + (self.hidden + 1) * CLASSES

    @property
    def fits_mnist(self) -> bool:
        return self.clients * self.records <= 60_000

    def config(self, *, unit: str, mnist: str, rounds: int, out: Path) -> str:
        """The TOML file for `fl-shuffle simulate`."""
        if mnist and self.fits_mnist:
            features = f'features = "pca"\nfeature_options = {{ components = {FEATURES} }}'
            data = f'source = "mnist"\nroot = {json.dumps(mnist)}\n{features}'
        else:
            data = 'source = "benchmarks.simulation_parts.synthetic:records"\nfeatures = "none"'
        kind = f'kind = "mlp"\nhidden = [{self.hidden}]' if self.hidden else 'kind = "linear"'
        return f"""
[run]
rounds = {rounds}
seed = 1
out = {json.dumps(str(out))}
evaluate_every = 1000000

[data]
{data}
clients = {self.clients}
records = {self.records}

[model]
{kind}

[privacy]
unit = "{unit}"
randomizer = "gaussian"
clip_norm = 1.0
target_delta = 1e-5

[budgets]
distribution = "constant"
epsilon = 1.0
delta = 1e-5

[server]
optimizer = "sgd"
learning_rate = 0.5
"""


JOBS = {
    job.name: job
    for job in (
        Job("J100", 100, 600, hidden=1000),
        Job("J1000", 1_000, 60, hidden=1000),
        Job("JS1000", 1_000, 60),
        Job("JS10000", 10_000, 6),
        Job("JS60000", 60_000, 1),
    )
}
SMOKE_JOB = Job("smoke", 40, 5)


def child_environment() -> dict[str, str]:
    """What engines find: this repository's code, one thread each."""
    environment = dict(os.environ)
    path = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def simulate_command(config: Path, settings: Mapping[str, object], out: Path) -> list[str]:
    """What starts `fl-shuffle simulate`."""
    code = "import sys; from fl_shuffle.cli import main; sys.exit(main())"
    overrides = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return [
        sys.executable,
        "-c",
        code,
        "simulate",
        str(config),
        "--json",
        *overrides,
        "--out",
        str(out),
    ]
