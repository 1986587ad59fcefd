"""What an object keeps from one call to the next."""

from __future__ import annotations

import hashlib
import random
import types
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def state_of(thing: object) -> dict[str, object]:
    """Return all that an object keeps, by the path at which it lies: buffers, attributes, numbers
    in closures, states of generators. Parameters are not in it: they change as they should."""
    trained = {id(each) for each in thing.parameters()} if isinstance(thing, nn.Module) else set()
    seen = set[int]()
    found: dict[str, object] = {}
    waiting: list[tuple[str, object]] = [("", thing)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Tensor | np.ndarray):
            found[path] = None if id(value) in trained else _digest(value)
        elif isinstance(value, bool | int | float | complex | str | bytes | None):
            found[path] = value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting += [(f"{path}.{name}" if path else name, part) for name, part in _parts(value)]
    return found


def _digest(values: Tensor | np.ndarray[Any, Any]) -> tuple[object, ...]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().resolve_conj().resolve_neg()
        kind, shape = str(values.dtype), tuple(values.shape)
        held = values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    else:
        kind, shape = str(values.dtype), values.shape
        held = repr(values.tolist()).encode() if values.dtype == object else values.tobytes()
    return kind, shape, hashlib.blake2b(held, digest_size=16).digest()


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield what an object holds, by name."""
    if isinstance(value, nn.Module):
        own = {name: part for name, part in vars(value).items() if name not in _NO_STATE}
        yield from own.items()
        yield from value._buffers.items()
        yield from value._modules.items()
    elif isinstance(value, Mapping):
        yield "len", len(value)
        yield from ((str(key), part) for key, part in list(value.items()))
    elif isinstance(value, set | frozenset):
        yield "items", sorted(map(repr, value)).__repr__()
    elif isinstance(value, torch.Generator):
        yield "state", value.get_state()
    elif isinstance(value, np.random.Generator):
        yield "state", repr(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState | random.Random):
        state = value.get_state() if isinstance(value, np.random.RandomState) else value.getstate()
        yield "state", repr(state)
    elif isinstance(value, partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield "__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # It is not filled yet.
                continue
        yield from vars(value).items()
        yield "__defaults__", value.__defaults__
    elif isinstance(value, type | types.ModuleType):
        return
    elif isinstance(value, list | tuple | deque):
        yield "len", len(value)
        yield from ((str(place), part) for place, part in enumerate(list(value)))
    else:
        yield from getattr(value, "__dict__", {}).items()


_NO_STATE = frozenset(
    name
    for name in vars(nn.Module())
    if name in {"_parameters", "_buffers", "_modules"} or "hooks" in name
)
"""Of a module: what `_parts` reads itself, parameters, and torch's own tables of hooks."""


def first_change(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Return the path of the first thing that both do not hold alike; empty if there is none."""
    for path in [*before, *after]:
        if path not in before or path not in after or not _alike(before[path], after[path]):
            return path.removesuffix(".len")
    return ""


def _alike(one: object, other: object) -> bool:
    # As texts: NaN is then what it was.
    return type(one) is type(other) and repr(one) == repr(other)
