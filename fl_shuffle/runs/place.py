"""Where a run is to be kept, and whether it goes on: from the command line to the ServerApp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fl_shuffle.errors import ConfigError, require_choice

RUN_DIRECTORY = "run-directory"
RESUME = "resume"
RESUMES = ("no", "yes", "data-unchanged")


@dataclass(frozen=True)
class RunPlace:
    """A run directory (None: a new one below `run.out`) and whether its run goes on.

    `resume` is "no", "yes", or "data-unchanged": the user vouches that the data are those the run
    was started with, where that cannot be checked. A run that is there already is never gone on
    with unasked. Raises `ConfigError` for a `resume` without a directory.
    """

    directory: Path | None = None
    resume: str = "no"

    def __post_init__(self) -> None:
        require_choice(RESUME, self.resume, RESUMES)
        if self.resume != "no" and self.directory is None:
            raise ConfigError(f"{RESUME} = {self.resume!r} needs the {RUN_DIRECTORY} to go on with")

    @property
    def goes_on(self) -> bool:
        return self.resume != "no"

    @classmethod
    def of(cls, run_config: Mapping[str, object]) -> RunPlace:
        """Read it out of Flower's run configuration."""
        directory = str(run_config.get(RUN_DIRECTORY, ""))
        return cls(Path(directory) if directory else None, str(run_config.get(RESUME, "")) or "no")

    def run_config(self) -> dict[str, str]:
        """As Flower's run configuration."""
        return {
            RUN_DIRECTORY: "" if self.directory is None else str(self.directory),
            RESUME: self.resume,
        }
