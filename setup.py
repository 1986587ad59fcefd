"""Where a wheel has what lies beside the package here: two pages, configurations, proofs.

Everything else about the distribution is in pyproject.toml.
"""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

BESIDE = {
    "fl_shuffle.builtin_apps.clients": "clients",
    "fl_shuffle.builtin_apps.server": "server",
    "fl_shuffle.configs": "configs",
}
PROOFS = Path("docs/research/proofs")


class WithProofs(build_py):
    """Copy the pages that answers name as docs/research/proofs to that place in the package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "fl_shuffle" / PROOFS
            self.mkpath(str(target))
            for page in sorted(PROOFS.glob("*.md")):
                self.copy_file(str(page), str(target))


setup(
    packages=[*find_packages(include=["fl_shuffle*"]), *BESIDE],
    package_dir=BESIDE,
    cmdclass={"build_py": WithProofs},
)
