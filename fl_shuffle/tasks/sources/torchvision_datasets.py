"""Importing torchvision beside a CPU-only torch.

A torchvision built for CUDA registers fake kernels for two operators (`nms`, `qnms`) that its
compiled library would define; beside a CPU-only torch that library does not load, and the plain
import raises `RuntimeError`. Data sets need neither operator: declaring them first lets the import
go through. This is done only when the plain import fails for exactly that reason.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch

_declared: list[Any] = []  # the library object must stay alive, or its operators vanish


def import_torchvision_datasets() -> Any:
    """Return `torchvision.datasets`."""
    try:
        return import_module("torchvision.datasets")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    return import_module("torchvision.datasets")
