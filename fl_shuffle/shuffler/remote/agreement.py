"""What all parties of a run must agree on, and what a report and a sum of them are in bytes.

Clients and server compute it from the public configuration, each for itself, and every sealed
report is bound to it and to its round. A site says with each report what it is bound to, and the
shuffler takes none that is bound to anything but what the run was begun with: who gives sites other
facts gets no reports of theirs. What is no part of an agreement (models, budgets, clips) is not
guarded so: that reports cannot be told apart by site takes an operator who sends every site the
same configuration and the same models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from numpy.typing import NDArray

from fl_shuffle.errors import InvalidValueError, RunError, require_choice, require_integer
from fl_shuffle.shuffler.levels import MANTISSA, Levels
from fl_shuffle.shuffler.remote.sealing import OVERHEAD, open_sealed

RELEASES = ("reports", "sum")
RUN_BYTES = 16
"""Of a run's identifier."""
LARGEST_DIMENSION = 1 << 32
"""Coordinates of a report; nothing of a declared size is allocated."""
LARGEST_SUM = 1 << 53
"""In steps: such sums are exact in float64."""
LARGEST_BATCHES = 10_000
"""Of a round."""
EVERYBODYS = np.zeros(1, dtype=np.int64)
"""Whose levels a sealed report has: all clients' are the same, since nobody knows whose it is."""


@dataclass(frozen=True)
class Agreement:
    """The public facts of one run that its shuffler goes by.

    `run` is the run's identifier, 32 hexadecimal digits. `release`: "reports" (sealed to the
    analyzer, released in random order) or "sum" (sealed to the shuffler, only the sum is released).
    A report has `dimension` coordinates, each a multiple of 2^`exponent` of at most `largest` of
    them in absolute value. Fewer than `min_reports` reports are never released. In a round a client
    sends `batches` reports, one for each of as many batches, which are shuffled by themselves. With
    `bits` above 0 a coordinate is one of 2^`bits` levels, the odd multiples of `half` steps, and
    travels as its number.
    Raises `InvalidValueError` for what cannot be.
    """

    run: str
    release: str
    clients: int
    dimension: int
    min_reports: int
    exponent: int
    largest: int
    batches: int = 1
    bits: int = 0
    half: int = 0

    def __post_init__(self) -> None:
        require_run(self.run)
        require_choice("release", self.release, RELEASES)
        require_integer("clients", self.clients, minimum=1, maximum=100_000_000)
        require_integer("dimension", self.dimension, minimum=1, maximum=LARGEST_DIMENSION)
        require_integer("min_reports", self.min_reports, minimum=1, maximum=self.clients)
        # The exponents of float32.
        require_integer("exponent", self.exponent, minimum=-149, maximum=127)
        require_integer("largest", self.largest, minimum=1, maximum=LARGEST_SUM)
        require_integer("batches", self.batches, minimum=1, maximum=LARGEST_BATCHES)
        require_integer("bits", self.bits, minimum=0, maximum=16)
        require_integer("half", self.half, minimum=min(1, self.bits), maximum=MANTISSA)
        most = self.clients * self.batches * self.largest
        if self.release == "sum" and most > LARGEST_SUM:
            raise InvalidValueError(
                "clients x batches x largest report",
                most,
                f"must be at most {LARGEST_SUM} steps, so that sums are exact",
            )

    @property
    def report_bytes(self) -> int:
        """Of a report: packed levels, or little-endian float32."""
        levels = self.levels
        return 4 * self.dimension if levels is None else levels.report_bytes(self.dimension)

    @property
    def sealed_bytes(self) -> int:
        """Of a sealed report."""
        return self.report_bytes + OVERHEAD

    @property
    def delivery_bytes(self) -> int:
        """Of a client's sealed reports of a round together; any other size is refused."""
        return self.batches * self.sealed_bytes

    @property
    def piece_bytes(self) -> int:
        """Of a piece of what is released: a sealed report, or the sum in 64-bit steps."""
        return 8 * self.dimension if self.release == "sum" else self.sealed_bytes

    @property
    def step(self) -> float:
        """The grid that reports lie on."""
        return 2.0**self.exponent

    @property
    def levels(self) -> Levels | None:
        """The levels of a coordinate, one and the same for all clients; None for float32."""
        return Levels(self.bits, np.array([self.half * self.step])) if self.bits else None

    def sum_in(self, content: bytes) -> NDArray[np.float64]:
        """Return the sum [d] that was released, exact. Raises `RunError` if it is none of this
        run."""
        if len(content) != self.piece_bytes:
            raise RunError(
                "the shuffler released something that is not a sum of this run's reports"
            )
        steps = np.frombuffer(content, dtype="<i8")
        return np.asarray(steps.astype(np.float64) * self.step, dtype=np.float64)

    def encoded(self) -> bytes:
        """Return the same facts as bytes, always the same ones."""
        facts = asdict(self)
        if not self.bits:
            # As before there were levels: runs of that time go on.
            del facts["bits"], facts["half"]
        return json.dumps(facts, sort_keys=True).encode()

    def info(self, round_number: int) -> bytes:
        """Return what the reports of a round are bound to."""
        return b"fl-shuffle sealed report\n%s\nround %d" % (self.encoded(), round_number)


def require_run(run: object) -> str:
    """Return a run's identifier; raises `InvalidValueError` if it is none."""
    if not isinstance(run, str) or not re.fullmatch(f"[0-9a-f]{{{2 * RUN_BYTES}}}", run):
        raise InvalidValueError("run", run, "must be 32 hexadecimal digits")
    return run


def pieces_of(content: bytes, size: int) -> list[bytes]:
    """Return the pieces of `size` bytes that stand behind one another: sealed reports, for
    example."""
    return [content[start : start + size] for start in range(0, len(content), size)]


def report_as_bytes(report: NDArray[np.float32], levels: Levels | None) -> bytes:
    """Return a report [d] as it is sealed: its `levels` packed, or float32."""
    if levels is not None:
        return levels.packed(report[None], EVERYBODYS).tobytes()
    return np.ascontiguousarray(report, dtype="<f4").tobytes()


def opened_report(
    sealed: bytes, private: bytes, agreement: Agreement, round_number: int
) -> NDArray[np.float32] | None:
    """Return the report [d] in a sealed message; None for what no honest client sends: what does
    not open as one of this round, or is off the grid or beyond the public bound."""
    try:
        content = open_sealed(sealed, private, agreement.info(round_number))
    except InvalidTag:
        return None
    if len(content) != agreement.report_bytes:
        return None
    if (levels := agreement.levels) is not None:
        packed = np.frombuffer(content, dtype=np.uint8)[None]
        rows = levels.unpacked(packed, EVERYBODYS, agreement.dimension)
        return None if rows is None else rows[0]
    report = np.frombuffer(content, dtype="<f4").astype(np.float32)
    # Exact: a float32 times a power of two, in float64.
    steps = report.astype(np.float64) / agreement.step
    with np.errstate(invalid="ignore"):
        good = (np.abs(steps) <= agreement.largest) & (np.rint(steps) == steps)
    return report if bool(good.all()) else None


def sum_of_usable(
    deliveries: Iterable[tuple[int, list[bytes]]],
    agreement: Agreement,
    round_number: int,
    private: bytes,
) -> tuple[list[int], bytes]:
    """Return the clients that are in the sum, and the sum as it is released, of (client, its sealed
    reports), opened with the shuffler's key. It is one of whole numbers of steps: exact, whatever
    the order.

    A client is left out with all its reports where one of them does not open, or is not what an
    honest client sends (on the grid, within the public bound).
    """
    total, clients = np.zeros(agreement.dimension, dtype=np.int64), []
    for client, sealed in deliveries:
        each = [opened_report(one, private, agreement, round_number) for one in sealed]
        reports = [report for report in each if report is not None]
        if len(reports) == agreement.batches:
            total += sum((one / agreement.step).astype(np.int64) for one in reports)
            clients.append(client)
    return clients, total.astype("<i8").tobytes()
