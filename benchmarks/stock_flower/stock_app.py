"""Federated learning with local noise, as Flower 1.41 and Opacus are commonly used.

One Flower node per client. A client computes per-sample gradients with Opacus, clips, averages,
adds Gaussian noise, takes its local step and sends the model; FedAvg averages the models, which is
one SGD step on the mean of the noisy gradients.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from opacus import GradSampleModule
from torch import nn

FEATURES, CLASSES = 60, 10

client = ClientApp()
server = ServerApp()


def build_model(hidden: int) -> nn.Module:
    """Softmax regression, or one hidden ReLU layer."""
    torch.manual_seed(1)
    if not hidden:
        return nn.Sequential(nn.Linear(FEATURES, CLASSES))
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


@client.train()
def train(message: Message, context: Context) -> Message:
    """One noisy gradient step on this client's records."""
    torch.set_num_threads(1)
    settings = context.run_config
    records, unit = int(settings["records"]), str(settings["unit"])
    clip, scale = float(settings["clip"]), float(settings["scale"])
    own = slice(*(records * (int(context.node_config["partition-id"]) + k) for k in (0, 1)))
    folder = Path(str(settings["data"]))
    inputs = torch.from_numpy(np.load(folder / "inputs.npy", mmap_mode="r")[own].copy())
    labels = torch.from_numpy(np.load(folder / "labels.npy", mmap_mode="r")[own].copy())
    plain = build_model(int(settings["hidden"]))
    plain.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    model = GradSampleModule(plain, loss_reduction="sum")
    loss = nn.functional.cross_entropy(model(inputs), labels, reduction="sum")
    torch.autograd.backward(loss)
    gradients = [parameter.grad_sample for parameter in model.parameters()]
    if unit == "client":
        gradients = [gradient.mean(dim=0, keepdim=True) for gradient in gradients]
    norms = sum(gradient.flatten(1).square().sum(dim=1) for gradient in gradients).sqrt()
    factor = (clip / norms).clamp(max=1.0)
    with torch.no_grad():
        for parameter, gradient in zip(plain.parameters(), gradients, strict=True):
            mean = torch.einsum("i,i...->...", factor, gradient) / len(gradient)
            noise = torch.normal(0.0, scale, mean.shape)
            parameter.sub_(float(settings["rate"]) * (mean + noise))
    content = RecordDict(
        {
            "arrays": ArrayRecord(plain.state_dict()),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)


class TimedFedAvg(FedAvg):
    """FedAvg that writes a line when a round's models have been averaged."""

    def __init__(self, times: Path, clients: int) -> None:
        super().__init__(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_available_nodes=clients,
        )
        self._times = times

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """FedAvg's own, then the line: round, time, how many clients answered."""
        kept = list(replies)
        answer = super().aggregate_train(server_round, kept)
        good = sum(not reply.has_error() for reply in kept)
        with self._times.open("a", encoding="utf-8") as file:
            file.write(f"{server_round} {time.time()} {good}\n")
        return answer


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Plain FedAvg for the configured number of rounds."""
    settings = context.run_config
    strategy = TimedFedAvg(Path(str(settings["times"])), int(settings["clients"]))
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(build_model(int(settings["hidden"])).state_dict()),
        num_rounds=int(settings["rounds"]),
    )
