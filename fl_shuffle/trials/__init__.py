"""The trial of a user's own code on made-up records, before the first round.

The guarantee needs code whose result for one record depends on that record alone: each record's
gradient is clipped, or each record is described, by itself. A loss, a model, a map of features or a
randomizer is a black box. So it computes made-up records here, alone and beside several companions,
in several orders and sizes, and is refused where a record's result changes, where the code keeps
something of the records that it has seen, or where it draws random numbers.

A trial refutes and proves nothing. It cannot see code that behaves otherwise on other records, in
larger batches, after more calls, on another device, or in another file than the object it holds.
"""

from fl_shuffle.trials.check import Subject, try_rows
from fl_shuffle.trials.losses import try_loss
from fl_shuffle.trials.models import CannotTryError, takes_whole_numbers_alone, try_model

__all__ = [
    "CannotTryError",
    "Subject",
    "takes_whole_numbers_alone",
    "try_loss",
    "try_model",
    "try_rows",
]
