"""The model and the records of both apps. They know nothing of privacy."""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor, nn

from fl_shuffle.data.sources import digits

CLIENTS, ROUNDS = 120, 5

read = functools.cache(digits.read)  # once per process, not once per client and round


def make_model() -> nn.Module:
    """Return a linear model of 8 x 8 pictures."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def records_of(client: int) -> tuple[Tensor, Tensor]:
    """Return the pictures, shape (n, 8, 8), and the labels, shape (n,), of one client."""
    images, labels, _, _ = read()
    own = slice(client, None, CLIENTS)
    return torch.from_numpy(images[own] / 16.0).float(), torch.from_numpy(labels[own])


def train_model(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Take three gradient steps on one client's records."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def accuracy(_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Measure the model on public records: an accuracy on private ones would reveal them."""
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    _, _, images, labels = read()
    with torch.no_grad():
        right = model(torch.from_numpy(images / 16.0).float()).argmax(dim=1).numpy() == labels
    return MetricRecord({"accuracy": float(right.mean())})
