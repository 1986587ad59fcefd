"""Where a wheel has what lies beside the package here: two pages, configurations, proofs.

Everything else about the distribution is in pyproject.toml.
"""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

BESIDE = {
    "fl_shuffle.pages.clients": "clients",
    "fl_shuffle.pages.server": "server",
    "fl_shuffle.configs": "configs",
}


class WithProofs(build_py):
    """What answers name as docs/proofs.md lies under that name in the package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "fl_shuffle" / "docs"
            self.mkpath(str(target))
            self.copy_file("docs/proofs.md", str(target))


setup(
    packages=[*find_packages(include=["fl_shuffle*"]), *BESIDE],
    package_dir=BESIDE,
    cmdclass={"build_py": WithProofs},
)
