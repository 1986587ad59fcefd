"""What a finished run left behind, read from its ledger when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import RunError, require_integer
from fl_shuffle.ledger.reader import RunView
from fl_shuffle.report.record import RunRecord, read_run
from fl_shuffle.report.tables import clients_table
from fl_shuffle.runs.views import summary_of
from fl_shuffle.threads import with_one_blas_thread

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from torch import nn


@dataclass(frozen=True)
class ClientSpend:
    """One client's bill: nats at `delta`, for replacing one unit of it.

    `epsilon` is proven, in the column that matches what the run releases: `proven_epsilon` counts
    the shuffler, `sum_epsilon` holds towards whoever sees sums alone (NaN where nothing is proven
    of them), `local_epsilon` is its own noise alone. `epsilon0` and `delta0` are the local budget
    of one of its reports.
    """

    client: int
    rounds: int
    epsilon: float
    proven_epsilon: float
    sum_epsilon: float
    local_epsilon: float
    delta: float
    epsilon0: float
    delta0: float


BILL = tuple(each.name for each in fields(ClientSpend) if each.name != "epsilon")


class ClientLedger:
    """A run's ledger, with every client's privacy worked out again from it."""

    def __init__(self, directory: Path) -> None:
        self.record: RunRecord = read_run(directory)

    @cached_property
    def table(self) -> Mapping[str, NDArray[Any]]:
        """One row a client, counted again."""
        return clients_table(self.record, recount=True)

    def __len__(self) -> int:
        return len(self.record.totals.rounds)

    def client(self, number: int) -> ClientSpend:
        """The bill of client `number` (0 to clients - 1). Raises `InvalidValueError`."""
        require_integer("client", number, minimum=0, maximum=len(self) - 1)
        own = {name: column[number].item() for name, column in self.table.items()}
        epsilon = float(self.record.totals.headline[number])
        return ClientSpend(epsilon=epsilon, **{name: own[name] for name in BILL})


class Result:
    """A finished run. `directory` is its folder; everything else is read from its ledger.

    Raises `RunError` if the folder holds no finished run.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._view = RunView(self.directory)
        self.summary: dict[str, Any] = summary_of(self._view)
        """The whole of the run's summary.json."""

    def __repr__(self) -> str:
        accuracy = "-" if self.accuracy is None else f"{self.accuracy:.2%}"
        return (
            f"<Result of {self._view.last_round} rounds: accuracy {accuracy}, epsilon <= "
            f"{self.epsilon:.4g} at delta = {self.delta:g} for the worst client, in "
            f"{self.directory}>"
        )

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the final model (0 to 1); None if it was not measured."""
        return self._view.measured("accuracy")

    @property
    def epsilon(self) -> float:
        """The proven epsilon (nats, at `delta`) of the worst client, in the column that matches
        what the run releases (`headline`); NaN if nothing was released."""
        return _known(self._view.epsilon)

    @property
    def headline(self) -> str | None:
        """The column of `epsilon`: `proven` where shuffled reports are seen, `sum` where only sums
        are; None if nothing was released."""
        return self._view.headline if self._view.last_round else None

    @property
    def sum_epsilon(self) -> float:
        """The proven epsilon of the worst client towards whoever sees sums of reports alone; NaN
        where nothing is proven of them."""
        return _known(self._view.spent("sum"))

    @property
    def sum_epsilon_add_remove(self) -> float:
        """`sum_epsilon` in another relation, to compare with accountants of central DP-SGD: a unit
        taken out instead of replaced. No guarantee of this run; NaN where it does not apply."""
        return _known(self._view.sum_add_remove)

    @property
    def delta(self) -> float:
        """The delta of every epsilon of this run."""
        return self._view.delta

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the numbers must know."""
        return tuple(self.summary["warnings"])

    @cached_property
    def config(self) -> Config:
        """The configuration as resolved."""
        return parse_config(self._view.config)

    @cached_property
    def metrics(self) -> dict[str, NDArray[Any]]:
        """Columns of equal length, one row a round, NaN where there is no number; `round` and
        `n_reports` are whole numbers, the rest float64. `pandas.DataFrame` takes them as they
        are."""
        return self._view.table()

    @cached_property
    def ledger(self) -> ClientLedger:
        """Every client's bill: `ledger.client(17)`."""
        return ClientLedger(self.directory)

    @with_one_blas_thread
    def to_dp_accounting(
        self, *, client: int, discretization: float = 1e-4
    ) -> PrivacyLossDistribution:
        """What the run has cost this client, as a privacy loss distribution of Google's
        dp-accounting, to compose with whatever else it takes part in: of the rounds in which its
        reports were released, among those that arrived, in the column of `headline`.

        The relation is REPLACE_ONE. Raises as `fl_shuffle.to_dp_accounting`, and
        `InvalidValueError` for a client that there is not.
        """
        from fl_shuffle.accounting.engine import dp_accounting_export as export

        require_integer("client", client, minimum=0, maximum=len(self.ledger) - 1)
        spent = self.ledger.record.accountant.of_client(client)
        law = (lambda epsilons: 0.0 * epsilons) if spent is None else spent.profile
        return export.to_dp_accounting(law, discretization=discretization)

    @property
    def model(self) -> nn.Module:
        """The final model, rebuilt from the configuration (which loads the data for its shapes).

        Raises `RunError` for a run of your own ServerApp, whose model only you can build.
        """
        from safetensors.torch import load_file

        from fl_shuffle.data.task import load_task

        if self.config.app.custom_server:
            raise RunError(
                f"the model of a run with app.server = {self.config.app.server!r} is your own: "
                "build it and load_state_dict(safetensors.torch.load_file(directory / "
                "'model.safetensors'))"
            )
        model = load_task(self.config).model(self.config)
        model.load_state_dict(load_file(self.directory / "model.safetensors"))
        return model.eval()

    @with_one_blas_thread
    def report(self, path: str | Path | None = None) -> Path:
        """Write the run's privacy report, one HTML page; returns where it is."""
        from fl_shuffle.report.page import write_report

        return write_report([self.ledger.record], None if path is None else Path(path))


def _known(value: float | None) -> float:
    return math.nan if value is None else value
