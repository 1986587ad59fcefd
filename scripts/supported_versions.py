"""Part of the suite with the lowest and with the newest releases that pyproject.toml allows.

`scripts/check_versions` makes a fresh environment for each in a temporary folder. torch and
torchvision stay as constraints.txt has them, because other builds of them may bring gigabytes for
GPUs along; `--torch` resolves them like everything else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
EXTRAS = ("ray", "parquet", "certificates", "dev")
PINNED = ("torch", "torchvision")
TESTS = (
    "tests/test_config.py",
    "tests/test_extras.py",
    "tests/api",
    "tests/accounting/engine",
    "tests/accounting/queries",
    "tests/aggregation",
    "tests/flower",
    "tests/gradients/test_gradient_values.py",
    "tests/randomizers",
    "tests/report",
    "tests/runs",
    "tests/data",
    "tests/apps/test_own_federation.py",
    "tests/apps/test_same_bits.py",
)
"""What touches the libraries; the rest of the suite is about our own arithmetic."""


def pins() -> list[str]:
    """The lines of constraints.txt for `PINNED`."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.partition("==")[0] in PINNED]


def install(python: str, folder: Path, resolution: str, *, any_torch: bool) -> None:
    """Install everything that pyproject.toml names, but not the package itself."""
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    kept = [] if any_torch else pins()
    # pip first: it is the one that is told where this machine's build of torch comes from.
    subprocess.run([*pip, "uv", *kept], check=True)
    constraints = folder / "kept.txt"
    constraints.write_text("\n".join(kept), encoding="utf-8")
    command = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python]
    command += ["--resolution", resolution, "--upgrade", "--constraint", str(constraints)]
    for extra in EXTRAS:
        command += ["--extra", extra]
    subprocess.run([*command, "-r", str(ROOT / "pyproject.toml")], check=True)


def check(which: str, tests: list[str], *, any_torch: bool) -> bool:
    """Whether `tests` pass with the lowest or the newest releases; says what was installed."""
    with tempfile.TemporaryDirectory(prefix="fl-shuffle-versions-") as name:
        folder = Path(name)
        print(f"== {which}: installing", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        python = str(folder / "venv" / "bin" / "python")
        install(python, folder, RESOLUTIONS[which], any_torch=any_torch)
        subprocess.run([python, "-m", "uv", "pip", "freeze", "--python", python], check=True)
        started = time.monotonic()
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", *tests]
        passed = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0
        said = "passed" if passed else "FAILED"
        print(f"== {which}: {said} in {time.monotonic() - started:.0f} s", flush=True)
        return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", metavar="lowest|newest", help="default: both in turn")
    parser.add_argument("--torch", action="store_true", help="resolve torch too (large downloads)")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), metavar="PATH")
    arguments = parser.parse_args()
    unknown = [which for which in arguments.which if which not in RESOLUTIONS]
    if unknown:
        parser.error(f"{unknown[0]!r} is neither lowest nor newest")
    chosen = arguments.which or list(RESOLUTIONS)
    found = [check(which, arguments.tests, any_torch=arguments.torch) for which in chosen]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
