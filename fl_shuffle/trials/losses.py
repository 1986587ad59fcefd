"""The trial of a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fl_shuffle.errors import InvalidValueError, first_line, text_of
from fl_shuffle.trials.check import (
    COMPANIES,
    CROWD,
    KEEP_NOTHING,
    POOL,
    Found,
    Subject,
    copies_of,
    differs,
    made_up,
    made_up_labels,
)
from fl_shuffle.trials.draws import ROUNDING, Draws
from fl_shuffle.trials.state import first_change, state_of


def try_loss(
    loss: Callable[[Tensor, Tensor], Any], size: int, subject: Subject, *, numbers: int = 0
) -> None:
    """Have `loss` compute made-up outputs [N, size] with labels that repeat: `numbers` to predict
    for each record, or (0) one of `size` classes.

    Raises `InvalidValueError` where it raises, returns something else than a loss for each record,
    mixes them, keeps something, draws numbers, or changes what it is given.
    """
    labels = made_up_labels(size, numbers)
    tried = list[Exception]()
    for dtype in ROUNDING:
        for kind in ("normal", "uniform"):
            outputs = made_up((size,), kind).to(dtype)
            wanted = labels.to(dtype) if numbers else labels
            try:
                found = copies_of(loss)[0](outputs.clone().requires_grad_(), wanted.clone())
                if isinstance(found, Tensor) and found.requires_grad:
                    found.sum().backward()  # type: ignore[no-untyped-call]
            except Exception as error:
                tried.append(error)
                continue
            _judge_loss(loss, outputs, wanted, subject)
            return
    raise subject.refused(
        f"raised {type(tried[-1]).__name__} on made-up outputs {[POOL, size]} and {labels.dtype} "
        f"labels {list(labels.shape)}: {text_of(tried[-1])}"
    )


def _judge_loss(loss: Any, outputs: Tensor, labels: Tensor, subject: Subject) -> None:
    changed = False
    draws = Draws()

    def compute(loss: Any, company: Sequence[int]) -> Found:
        nonlocal changed
        leaf = outputs.clone().requires_grad_()
        index = torch.tensor(company)
        given, wanted = leaf[index], labels[index]
        with draws, torch.enable_grad():
            found = loss(given, wanted)
        _require_losses(found, len(company), subject)
        same = torch.equal(given, outputs[index])
        changed |= not (same and torch.equal(wanted, labels[index]))
        total = found[0] if len(company) == 1 else found[0] + found[-1]
        flow = torch.zeros_like(leaf)
        if total.requires_grad:
            (flow,) = torch.autograd.grad(total, leaf, materialize_grads=True, allow_unused=True)
        return Found(found.detach(), flow)

    once, often = copies_of(loss)
    try:
        # Other records first: what is kept of the first ones for ever shows, too.
        compute(once, [3, 1])
        kept = state_of(once)
        how = differs(partial(compute, often), draws.rounding, (*COMPANIES, CROWD))
    except InvalidValueError:
        raise
    except Exception as error:
        raise subject.refused(
            f"computes {POOL} made-up records, and raises {type(error).__name__} for another "
            f"number of them: {first_line(error)}",
            "give a loss for each record, also for a single one",
        ) from error
    if draws.first is not None:
        raise subject.refused(
            f"draws random numbers ({draws.first[0]}), so results depend on what was drawn before",
            "use constants that are fixed in advance",
        )
    if changed:
        raise subject.refused(
            "changes outputs or labels that it is given in place, which changes the records of "
            "later rounds",
            "write the result to a new tensor",
        )
    changes = first_change(kept, state_of(often))
    if changes:
        raise subject.refused(f"keeps {changes!r} from one call to the next", KEEP_NOTHING)
    if how == "again":
        raise subject.refused(
            "gives the same records other losses in a second call",
            "make it a function of outputs and labels alone",
        )
    if how:
        raise subject.refused(
            "mixes records: a record's loss changes with those beside it, so clipping each "
            "gradient would bound nothing",
            "compute it from each record alone, with weights that are fixed in advance",
        )


def _require_losses(found: Any, records: int, subject: Subject) -> None:
    if not isinstance(found, Tensor) or found.shape != (records,):
        what = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise subject.refused(
            f"returned {what} for {records} records; it must return one loss for each, as with "
            "reduction='none'"
        )
