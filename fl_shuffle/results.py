"""What a finished run left behind, read from its ledger when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.plugins import data_frame
from fl_shuffle._internal.renamed import RenamedKeys, renamed_attribute, warn_renamed
from fl_shuffle._internal.threads import with_one_blas_thread
from fl_shuffle.accounting.distributions.gaussian_cover import GaussianCover
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import RunError, first_line, require_integer
from fl_shuffle.ledger.reader import RunView
from fl_shuffle.ledger.tables import OLD_CSV
from fl_shuffle.report.record import RunRecord, read_run
from fl_shuffle.report.tables import clients_table
from fl_shuffle.runs.directory import MODEL, checkpoint_name, checkpoints_in
from fl_shuffle.runs.views import summary_of

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from pandas import DataFrame
    from torch import nn

    from fl_shuffle.report.history import SpendHistory


@dataclass(frozen=True)
class ClientSpend:
    """One client's spend, for replacing one unit of the client.

    Attributes
    ----------
    client_id : int
        Number of the client, 0 to clients - 1.
    rounds : int
        Number of rounds in which a report of it was released.
    epsilon : float
        Proven epsilon, in nats at `delta`, in the column that matches what the run releases.
    shuffled_epsilon : float
        Proven epsilon against an attacker who sees the shuffled reports.
    sum_epsilon : float
        Proven epsilon against an attacker who sees only sums; NaN where nothing is proven of them.
    local_epsilon : float
        Epsilon of the client's own noise alone.
    delta : float
        Delta of these four epsilons.
    epsilon0, delta0 : float
        Local budget of one of its reports.
    """

    client_id: int
    rounds: int
    epsilon: float
    shuffled_epsilon: float
    sum_epsilon: float
    local_epsilon: float
    delta: float
    epsilon0: float
    delta0: float

    client = renamed_attribute("client", "client_id")
    proven_epsilon = renamed_attribute("proven_epsilon", "shuffled_epsilon")


BILL = tuple(each.name for each in fields(ClientSpend) if each.name != "epsilon")


class ClientLedger:
    """A run's ledger, with every client's privacy recomputed from it.

    `Result.ledger` returns it.

    Parameters
    ----------
    directory : Path
        Run directory.

    Notes
    -----
    Epsilons are cumulative, in nats at the run's delta, for replace-one neighbors.
    """

    def __init__(self, directory: Path) -> None:
        self.record: RunRecord = read_run(directory)

    @cached_property
    def _table(self) -> Mapping[str, NDArray[Any]]:
        return clients_table(self.record, recount=True)

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Return one row for each client, computed again: columns of equal length.

        Returns
        -------
        dict of str to ndarray, shape (clients,)
            Client number, rounds, and the epsilon of each column, in nats at the run's delta.
        """
        return RenamedKeys(self._table, OLD_CSV)

    def to_frame(self) -> DataFrame:
        """Return `to_dict()` as a pandas data frame.

        Returns
        -------
        pandas.DataFrame
            One row for each client.

        Raises
        ------
        ConfigError
            If pandas is not installed.
        """
        return data_frame(self.to_dict())

    @property
    def table(self) -> Mapping[str, NDArray[Any]]:
        """The old name of `to_dict()`."""
        warn_renamed("ClientLedger.table", "ClientLedger.to_dict()")
        return self.to_dict()

    def __len__(self) -> int:
        return len(self.record.totals.rounds)

    def client(self, number: int) -> ClientSpend:
        """Return the spend of one client.

        Parameters
        ----------
        number : int
            Number of the client, 0 to clients - 1.

        Returns
        -------
        ClientSpend
            Its rounds, epsilons, and local budget.

        Raises
        ------
        InvalidValueError
            If there is no such client.
        """
        require_integer("client", number, minimum=0, maximum=len(self) - 1)
        own = {name: column[number].item() for name, column in self._table.items()}
        own["client_id"] = own["client"]
        epsilon = float(self.record.totals.headline[number])
        return ClientSpend(epsilon=epsilon, **{name: own[name] for name in BILL})

    @with_one_blas_thread
    def history(self, clients: Sequence[int] | None = None) -> SpendHistory:
        """Return what clients had spent after every round.

        Parameters
        ----------
        clients : sequence of int, optional
            Numbers of clients, 0 to clients - 1, in any order; all clients by default. One client
            is much cheaper than all of them.

        Returns
        -------
        SpendHistory
            Epsilons (nats, at the run's delta) in arrays of shape (rounds, clients), one for each
            column; `epsilon` is the column that matches what the run releases. The last row is what
            `client` gives.

        Raises
        ------
        InvalidValueError
            For a number that no client has.

        Examples
        --------
        >>> import tempfile
        >>> import fl_shuffle as fs
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fs.simulate(overrides={"run.rounds": 2, "run.out": folder})
        ...     history = result.ledger.history([17])
        ...     last = result.ledger.client(17)
        >>> history.epsilon.shape
        (2, 1)
        >>> bool(history.epsilon[-1, 0] == last.epsilon)
        True
        """
        from fl_shuffle.report.history import spend_history

        if clients is None:
            return spend_history(self.record)
        last = len(self.record.class_of) - 1
        chosen = [require_integer("client", each, minimum=0, maximum=last) for each in clients]
        return spend_history(self.record, np.array(chosen, dtype=np.int64))


class Result:
    """A finished run, read from its run directory.

    `fl_shuffle.simulate`, `fl_shuffle.resume`, and sweeps return results. To open an earlier run,
    pass its directory.

    Parameters
    ----------
    directory : str or Path
        Run directory.

    Raises
    ------
    RunError
        If the directory holds no finished run.

    Notes
    -----
    Epsilons are in nats, for replace-one neighbors that differ in one `privacy.unit`. Reading a
    result changes nothing in the run directory.

    Examples
    --------
    >>> import tempfile
    >>> import fl_shuffle as fs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = fs.simulate(overrides={"run.rounds": 2, "run.out": folder}).directory
    ...     result = fs.Result(path)
    ...     spend = result.ledger.client(17)
    >>> print(result.headline, spend.rounds, round(spend.epsilon, 3), spend.delta)
    shuffled 2 0.246 1e-05
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
            f"{self.epsilon:.4g} at delta = {self.delta:g} for the most exposed client, in "
            f"{self.directory}>"
        )

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the final model (0 to 1); None if it was not measured."""
        return self._view.measured("accuracy")

    @property
    def epsilon(self) -> float:
        """The proven epsilon (nats, at `delta`) of the most exposed client.

        It is that of the column that matches what the run releases (`headline`); NaN if nothing was
        released.
        """
        return _known(self._view.epsilon)

    @property
    def headline(self) -> str | None:
        """The column of `epsilon`; None if nothing was released.

        `shuffled` where shuffled reports are seen, `sum` where only sums are, `none` without any
        privacy.
        """
        return self._view.headline if self._view.last_round else None

    @property
    def sum_epsilon(self) -> float:
        """The proven epsilon of the most exposed client against an attacker who sees only sums.

        NaN where nothing is proven of them.
        """
        return _known(self._view.spent("sum"))

    @property
    def sum_epsilon_add_remove(self) -> float:
        """`sum_epsilon` for add-remove neighbors, to compare with accountants of central DP-SGD.

        A unit is taken out instead of replaced. No guarantee of this run; NaN where it does not
        apply.
        """
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
        """Columns of metrics.csv: arrays of shape (rounds,), NaN where there is no number.

        `round` and `num_reports` are whole numbers, the rest float64. `pandas.DataFrame` takes them
        as they are.
        """
        return self._view.table()

    @cached_property
    def ledger(self) -> ClientLedger:
        """The spend of every client: `ledger.client(17)`."""
        return ClientLedger(self.directory)

    @with_one_blas_thread
    def to_dp_accounting(
        self, *, client: int, discretization: float = 1e-4
    ) -> PrivacyLossDistribution:
        """Return what the run has cost one client, as a distribution of Google's dp-accounting.

        It composes with whatever else the client takes part in. It is of the rounds in which the
        client's reports were released, among those that arrived, in the column of `headline`.

        Parameters
        ----------
        client : int
            Number of the client, 0 to clients - 1.
        discretization : float, default 1e-4
            Step of the grid of privacy losses, in nats, 1e-6 to 1.

        Returns
        -------
        PrivacyLossDistribution
            A distribution that dominates the client's reports of all rounds.

        Raises
        ------
        InvalidValueError
            If there is no such client, or `discretization` is out of range.
        ConfigError
            If dp-accounting is not installed.

        Notes
        -----
        Neighbors: replace-one (REPLACE_ONE in dp-accounting). Direction of error: losses are
        rounded up.

        See Also
        --------
        fl_shuffle.to_dp_accounting : The same for a bound.
        """
        from fl_shuffle.accounting.numerics import dp_accounting_export as export

        require_integer("client", client, minimum=0, maximum=len(self.ledger) - 1)
        spent = self.ledger.record.accountant.of_client(client)
        law = (lambda epsilons: 0.0 * epsilons) if spent is None else spent.profile
        return export.to_dp_accounting(law, discretization=discretization)

    @with_one_blas_thread
    def gaussian_cover(self, client: int | None = None) -> GaussianCover:
        """Return what the run has cost one client, as Gaussian DP.

        Parameters
        ----------
        client : int, optional
            Number of the client, 0 to clients - 1. By default, the most exposed one.

        Returns
        -------
        GaussianCover
            `mu` and `rare`: the client's trade-off function in the column of `headline` is at least
            that of Gaussian DP with parameter `mu`, less `rare`. Of sums of Gaussian reports mu is
            exact, and `rare` is 1e-90. Otherwise mu is the smallest certified one that holds but
            for the run's delta.

        Raises
        ------
        InvalidValueError
            If there is no such client.
        NotApplicableError
            If the run adds no noise.

        Notes
        -----
        Sources: Dong, Roth, Su 2022; docs/research/proofs, section 6. Neighbors: replace-one.
        Direction of error: mu is rounded up.
        """
        accountant = self.ledger.record.accountant
        if client is None:
            client = int(np.argmax(accountant.client_totals().headline))
        require_integer("client", client, minimum=0, maximum=len(self.ledger) - 1)
        spent = accountant.of_client(client)
        return GaussianCover(0.0, 0.0) if spent is None else spent.gaussian_cover(self.delta)

    @property
    def model(self) -> nn.Module:
        """The final model, rebuilt from the configuration (which loads the data for its shapes).

        Raises
        ------
        RunError
            For a run of your own ServerApp, whose model only you can build.
        """
        return load_model(self.directory)

    @with_one_blas_thread
    def report(self, path: str | Path | None = None, *, clients: Sequence[int] = ()) -> Path:
        """Write the run's privacy report, one HTML page.

        Parameters
        ----------
        path : str or Path, optional
            File to write. By default, a file in the run directory.
        clients : sequence of int, optional
            Numbers of clients whose spend the page shows one by one.

        Returns
        -------
        Path
            Where the page is.

        Raises
        ------
        InvalidValueError
            For a number that no client has.
        """
        from fl_shuffle.report.page import write_report

        record, last = read_run(self.directory), len(self.ledger) - 1
        record.followed = tuple(
            require_integer("client", each, minimum=0, maximum=last) for each in clients
        )
        return write_report([record], None if path is None else Path(path))


def load_model(directory: str | Path, *, round_number: int | None = None) -> nn.Module:
    """Return the model of a run, rebuilt from its configuration.

    Parameters
    ----------
    directory : str or Path
        Folder of the run. With a `round_number` the run need not be finished.
    round_number : int, optional
        The model after this round, which `run.checkpoint_every` saved; by default the final one.

    Returns
    -------
    torch.nn.Module
        In evaluation mode, on the processor. The data are loaded for their shapes.

    Raises
    ------
    RunError
        If the folder holds no such model, or the run has a ServerApp of your own, whose model only
        you can build.

    Examples
    --------
    >>> import tempfile
    >>> import fl_shuffle as fs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = fs.simulate(overrides={"run.rounds": 1, "run.out": folder}).directory
    ...     model = fs.load_model(path)
    >>> model.training
    False
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from fl_shuffle.data.task import load_task

    folder = Path(directory)
    config = parse_config(RunView(folder).config)
    name = MODEL if round_number is None else checkpoint_name(round_number)
    if config.app.custom_server:
        raise RunError(
            f"the model of a run with app.server = {config.app.server!r} is user-defined: build "
            "it, and "
            f"load_state_dict(safetensors.torch.load_file(directory / {name!r}))"
        )
    if not (folder / name).is_file():
        saved = ", ".join(map(str, checkpoints_in(folder))) or "none"
        raise RunError(f"{folder} holds no {name}; models were saved after rounds: {saved}")
    model = load_task(config).model(config)
    try:
        model.load_state_dict(load_file(folder / name))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise RunError(f"{folder / name} is not the run's model: {first_line(error)}") from None
    return model.eval()


def _known(value: float | None) -> float:
    return math.nan if value is None else value
