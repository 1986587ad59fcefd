"""The trial of a model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from fl_shuffle.errors import first_line
from fl_shuffle.trials.check import (
    ALONE,
    COMPANIES,
    KEEP_NOTHING,
    POOL,
    Found,
    Subject,
    differs,
    made_up,
    size_of,
)
from fl_shuffle.trials.draws import ROUNDING, Draws
from fl_shuffle.trials.state import first_change, state_of

MOVED = 0.1
"""Parameters are moved by this many standard normals: zeros, as in a last layer, hide what is
behind them."""


class CannotTryError(Exception):
    """The code raises on every kind of made-up record: nothing was tried."""


class _UnfitError(Exception):
    """No record's doing: why a module is refused, and what to do."""


def try_model(
    module: nn.Module, shape: tuple[int, ...], field: str = "module", *, whole: bool | None = None
) -> int:
    """Have copies of `module` compute made-up records of `shape`, and their gradients; returns how
    many numbers it gives for a record. `whole`: int64 records, or float ones; None: either.

    Raises `InvalidValueError`, which names the part, where records mix, random numbers are drawn,
    a record or a parameter is changed in place, a gradient is sparse, or something is kept of the
    records; `CannotTryError` where it raises on all of them.
    """
    try:
        trial = _setting(module, shape, (False, True) if whole is None else (whole,))
    except _UnfitError as error:
        raise _subject(module, "", field).refused(*error.args) from None
    draws, changed = Draws(), list[bool]()
    once, often = copy.deepcopy(trial.module), copy.deepcopy(trial.module)
    try:
        # Other records first: what is kept of the first ones for ever shows, too.
        trial.compute(once, [3, 1], draws, changed)
        kept = state_of(once)
        how = differs(
            lambda company: trial.compute(often, company, draws, changed),
            draws.rounding, COMPANIES,
        )  # fmt: skip
    except Exception as error:
        raise _subject(module, "", field).refused(
            f"computes {POOL} made-up records, and fails with others of them or another number: "
            f"{type(error).__name__}: {first_line(error)}",
            "give a row for each record, also for a single one: x.flatten(1), no x.squeeze()",
        ) from error
    if draws.first is not None:
        what, part = draws.first
        raise _subject(module, part, field).refused(
            f"draws random numbers ({what}) from a shared random state, so reports would depend on "
            "what was computed before",
            "set its dropout to 0, or call eval() on it",
        )
    if any(changed):
        raise _subject(module, "", field).refused(
            "changes its input in place, which changes the records of later rounds",
            "write x = x / 255 for x /= 255",
        )
    changes = first_change(kept, state_of(often))
    if changes:
        part = _part_at(module, changes)
        name = changes.removeprefix(part).removeprefix(".")
        raise _subject(module, part, field).refused(
            f"keeps {name!r}, which changes from call to call: it would carry what it has seen of "
            "one record into the gradients of others",
            f"{KEEP_NOTHING}; GroupNorm and LayerNorm keep no statistics",
        )
    if how == "again":
        raise _subject(module, "", field).refused(
            "gives the same record another result in a second call",
            "make it a function of its input and its parameters alone",
        )
    if how:
        raise _subject(module, trial.mixing_part(), field).refused(
            f"mixes records: a made-up record's result changes with those beside it; {ALONE}, or "
            "clipping its gradient bounds nothing",
            "compute nothing across the first dimension of a batch",
        )
    return trial.outputs


def _subject(module: nn.Module, path: str, field: str) -> Subject:
    """Return the part of the module at this path."""
    part = _part_at(module, path)
    return Subject(f"{field} {part}".rstrip(), type(module.get_submodule(part)).__name__)


def _part_at(module: nn.Module, path: str) -> str:
    """Return the path of the innermost part that a path leads through."""
    names = dict(module.named_modules())
    while path not in names:
        path = path.rpartition(".")[0]
    return path


@dataclass(frozen=True)
class _Setting:
    """A module, and made-up records that it computes: `pool` [POOL, ...], `outputs` for each, with
    this `rounding`."""

    module: nn.Module
    pool: Tensor
    outputs: int = 0
    rounding: float = 0.0

    def compute(
        self, module: nn.Module, company: Sequence[int], draws: Draws, changed: list[bool]
    ) -> Found:
        """Return outputs, and the gradient of a fixed sum of those of the first and the last
        record."""
        given = self.pool[torch.tensor(company)]
        before = given.clone()
        parameters = list(module.parameters())
        trained = [each.detach().clone() for each in parameters]
        with draws, _told(module, draws.inside), torch.enable_grad():
            found = module(given)
        changed.append(not torch.equal(given, before))
        for each, was in zip(parameters, trained, strict=True):
            if not torch.equal(each.detach().nan_to_num(), was.nan_to_num()):
                raise _UnfitError(
                    "changes its parameters while it computes, before any noise is added",
                    "leave that to training; of an embedding leave max_norm out",
                )
        if not isinstance(found, Tensor) or found.shape[:1] != (len(company),):
            raise TypeError("the module must return a tensor [N, C] for N records")
        direction = torch.linspace(-1.0, 2.0, found[0].numel(), dtype=found.dtype)
        ends = found[:1] if len(company) == 1 else found[[0, -1]]
        total = (ends.flatten(1) * direction).sum()
        flows: Sequence[Tensor] = [torch.zeros_like(each) for each in parameters]
        if total.requires_grad:
            flows = torch.autograd.grad(
                total, parameters, materialize_grads=True, allow_unused=True
            )
        if any(flow.is_sparse for flow in flows):
            raise _UnfitError(
                "has sparse gradients, and those of single records cannot be computed here",
                "leave sparse=True out: a report's noise is in every number, sparse or not",
            )
        return Found(found.detach(), torch.cat([flow.reshape(-1) for flow in flows]))

    def mixing_part(self) -> str:
        """Return the path of the part that gives a record something else beside others, though it
        has got the same for it; empty for the module itself, or if that is not to be seen."""
        rounding = self.rounding
        for company in COMPANIES:
            beside, alone = self._passes(company), self._passes(company[-1:])
            for (name, came_in, many), (other, _, one) in zip(beside, alone, strict=False):
                if name != other:
                    break
                if len(many) != len(company) or len(one) != 1 or many[0].shape != one[0].shape:
                    continue
                least = rounding * max(size_of(one), 1e-30)
                if not torch.allclose(many[-1], one[0], rtol=0.0, atol=least, equal_nan=True):
                    return name.rpartition(".")[0] if came_in else name
        return ""

    def _passes(self, company: Sequence[int]) -> list[tuple[str, bool, Tensor]]:
        """Return what goes into (True) and comes out of each part, in the order of the
        computation."""
        found: list[tuple[str, bool, Tensor]] = []
        module = copy.deepcopy(self.module)

        def keep(name: str, came_in: bool, value: Any) -> None:
            value = value[0] if isinstance(value, tuple) and value else value
            if isinstance(value, Tensor) and value.dim():
                found.append((name, came_in, value.detach().clone()))

        for name, part in module.named_modules():
            part.register_forward_pre_hook(lambda _, given, name=name: keep(name, True, given))
            part.register_forward_hook(lambda _, __, out, name=name: keep(name, False, out))
        with torch.no_grad():
            module(self.pool[torch.tensor(company)])
        return found


@contextmanager
def _told(module: nn.Module, inside: list[str]) -> Iterator[None]:
    """Keep in `inside` which part of the module computes, in which."""
    handles = []
    for name, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda *_, name=name: inside.append(name)))
        handles.append(part.register_forward_hook(lambda *_: _leave(inside)))
    try:
        yield
    finally:
        inside.clear()
        for handle in handles:
            handle.remove()


def _leave(inside: list[str]) -> None:
    inside.pop()


def takes_whole_numbers_alone(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether a module computes int64 records and raises on float ones, as an embedding
    does."""
    for whole in (False, True):
        try:
            _setting(module, shape, (whole,))
        except CannotTryError:
            continue
        except _UnfitError:
            pass  # It computes them; `try_model` says what is wrong with it.
        return whole
    return False


KINDS = {False: ("normal", "bits", "uniform"), True: ("bits",)}
"""Of made-up records, by whether they are whole numbers."""


def _setting(module: nn.Module, shape: tuple[int, ...], wholes: Sequence[bool]) -> _Setting:
    """Return made-up records that the module computes, on the processor: with parameters that were
    moved, in float64, and of finite results, if there are such."""
    best: _Setting | None = None
    last: Exception | None = None
    for whole, dtype in product(wholes, ROUNDING):
        for kind in KINDS[whole]:
            pool = made_up(shape, kind).to(torch.int64 if whole else dtype)
            for moved in (MOVED, 0.0):
                try:
                    setting = _Setting(_moved(module, moved, dtype), pool)
                    found = setting.compute(copy.deepcopy(setting.module), range(POOL), Draws(), [])
                except _UnfitError:
                    raise
                except Exception as error:
                    last = error
                    continue
                setting = replace(setting, outputs=found.rows[0].numel(), rounding=ROUNDING[dtype])
                if bool(torch.isfinite(found.rows).all() & torch.isfinite(found.total).all()):
                    return setting
                best = best or setting
    if best is None:
        raise CannotTryError from last
    return best


def _moved(module: nn.Module, distance: float, dtype: torch.dtype) -> nn.Module:
    """Return a copy on the processor, its parameters moved a little, always alike."""
    made = copy.deepcopy(module).cpu().to(dtype)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for each in made.parameters():
            each.add_(torch.randn(each.shape, generator=draw, dtype=dtype), alpha=distance)
    return made
