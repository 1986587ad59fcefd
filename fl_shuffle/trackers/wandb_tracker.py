"""Weights & Biases: a run in the project `fl-shuffle`, offline unless $WANDB_MODE says "online"."""

from __future__ import annotations

import os
from typing import Any

from fl_shuffle.errors import ConfigError
from fl_shuffle.runs.events import RoundFinished, RunEvent, RunFinished, RunStarted
from fl_shuffle.runs.facts import publishes_times
from fl_shuffle.trackers.protocol import FINAL, finite, numbers_of

PROJECT = "fl-shuffle"
FAILED = 1
"""The exit code of a run that ends without a summary."""


class Tracker:
    """Logs the configuration, rounds by step, and the summary; no code, console or machine facts.

    W&B writes down when each round was logged: a run that publishes no times is refused with
    `ConfigError`.
    """

    def __init__(self, wandb: Any = None) -> None:
        """`wandb`: the module, imported unless given."""
        if wandb is None:
            import wandb as module

            wandb = module
        self._wandb = wandb
        self._run: Any = None
        self._done = False

    def __call__(self, event: RunEvent) -> None:
        """See `Tracker`."""
        if isinstance(event, RunStarted):
            if not publishes_times(event.config):
                raise ConfigError(
                    "--track wandb writes down when rounds end, and how long clients compute may "
                    "hang on their records; with run.entropy = 'system' use tensorboard or mlflow"
                )
            self._run = self._wandb.init(
                project=PROJECT,
                name=event.directory.name,
                config=event.config.to_dict(),
                mode=os.environ.get("WANDB_MODE", "offline"),
                save_code=False,
                settings=self._wandb.Settings(
                    console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True
                ),
            )
        elif isinstance(event, RoundFinished):
            self._run.log(numbers_of(event.outcome), step=event.outcome.round_number)
        elif isinstance(event, RunFinished):
            self._run.summary.update(finite({n: event.summary[n] for n in FINAL}))
            self._done = True

    def close(self) -> None:
        """End the run on W&B's side."""
        if self._run is not None:
            self._run.finish(exit_code=0 if self._done else FAILED)
