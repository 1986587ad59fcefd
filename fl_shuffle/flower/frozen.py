"""What of a user's model is not trained: it travels with every request, and gets no noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fl_shuffle.errors import ConfigError
from fl_shuffle.flower.messages import record_in

FROZEN_RECORD = "frozen"
"""The arrays beside the trained ones, and ..."""
WHOLE_RECORD = "whole model"
"""... how both make the model: its names in order, and whose values each of them has."""


BATCH_COUNT = "num_batches_tracked"


@dataclass(frozen=True)
class Frozen:
    """`names` of the whole model in order; `values_of`: the array that each has its values from,
    itself but for tied weights; `arrays`: those that stay as they are."""

    names: list[str]
    values_of: list[str]
    arrays: ArrayRecord

    @classmethod
    def of(cls, model: Any, arrays: ArrayRecord) -> Frozen:
        """Return what of these arrays `model`, a torch module, does not train: buffers, parameters
        that ask for no gradient, and further names of one that has several. Statistics of batches
        are left to be refused: they would never be what models with them need.

        Raises `ConfigError` for a model that is none, or whose parameters are not among the arrays.
        """
        if not hasattr(model, "named_parameters"):
            raise ConfigError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
        named = list(model.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        owner = {name: first.setdefault(id(each), name) for name, each in named}
        missing = sorted(set(owner) - set(arrays))
        if missing:
            raise ConfigError(
                f"initial_arrays lack {missing[0]!r}, a parameter of the model; give its whole "
                "state_dict()"
            )
        still = {name for name, each in named if not each.requires_grad}
        still |= {name for name, _ in model.named_buffers() if not name.endswith(BATCH_COUNT)}
        kept = ArrayRecord()
        for name in arrays:
            if name in still:
                kept[name] = arrays[name]
        return cls(list(arrays), [owner.get(name, name) for name in arrays], kept)

    @classmethod
    def read(cls, content: RecordDict) -> Frozen | None:
        """Return what came with a request; None if all of the model is trained."""
        how = record_in(content, WHOLE_RECORD, ConfigRecord)
        if how is None:
            return None
        names, values_of = (list(map(str, how[key])) for key in ("names", "values of"))  # type: ignore[arg-type]
        return cls(
            names, values_of, record_in(content, FROZEN_RECORD, ArrayRecord) or ArrayRecord()
        )

    def records(self) -> dict[str, ArrayRecord | ConfigRecord]:
        """Return what goes beside a request's trained arrays."""
        how = ConfigRecord({"names": self.names, "values of": self.values_of})
        return {FROZEN_RECORD: self.arrays, WHOLE_RECORD: how}

    def trained(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the arrays of the whole model that are trained, each once."""
        found = ArrayRecord()
        for name, owner in zip(self.names, self.values_of, strict=True):
            if name == owner and name not in self.arrays:
                found[name] = arrays[name]
        return found

    def whole(self, trained: ArrayRecord) -> ArrayRecord:
        """Return the whole model's arrays, in their order."""
        found = ArrayRecord()
        for name, owner in zip(self.names, self.values_of, strict=True):
            found[name] = self.arrays[name] if name in self.arrays else trained[owner]
        return found
