"""Clients that train with Opacus: DP-SGD adds the noise, and fl_shuffle writes down what it costs.

    fl-shuffle simulate opacus_app.toml --out run

Each client trains privately by itself and sends its model. No noise is added a second time: the
configuration declares Opacus' noise. The epsilons that are written down compose the noisy steps,
for a record that is replaced, without credit for sampling or shuffling. At the end the server
prints what Opacus' own accountant says of the same steps.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy

NOISE, CLIP = 1.5, 1.0  # declared_sigma = NOISE * CLIP
BATCH, RECORDS = 50, 200  # declared_steps = RECORDS / BATCH
ROUNDS, DELTA = 5, 1e-5

client, server = ShuffleClientApp(beside=__file__), ServerApp()


def net() -> nn.Module:
    """A small network with GroupNorm, which keeps records apart."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GroupNorm(4, 16), nn.ReLU(), nn.Linear(16, 2))


def made_up_records(seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Replace this by the records of the client."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(number, 8, generator=draw)
    return x, (x[:, :4].sum(dim=1) > 0).long()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of DP-SGD."""
    model = net()
    # `net` has seeded the generator that Opacus draws from: noise that repeats protects nobody.
    torch.seed()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    records = made_up_records(context.node_config["partition-id"], RECORDS)
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(TensorDataset(*records), batch_size=BATCH),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
    )
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(private(x), y).backward()
        optimizer.step()
    # The module inside of Opacus' wrapper: its parameters have the names that the server knows.
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)


def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on public records."""
    model = net()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = made_up_records(10_000, 2_000)
    return MetricRecord({"accuracy": float((model(x).argmax(1) == y).float().mean())})


@server.main()
def main(grid: Grid, context: Context) -> None:
    """A shuffler strategy in the place of FedAvg, and Opacus' figure."""
    strategy = ShuffleStrategy.of(context, beside=__file__)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(net().state_dict()), evaluate_fn=evaluate)
    accountant = create_accountant("prv")
    steps = ROUNDS * (RECORDS // BATCH)
    for _ in range(steps):
        accountant.step(noise_multiplier=NOISE, sample_rate=BATCH / RECORDS)
    epsilon = accountant.get_epsilon(delta=DELTA)
    print(
        f"Opacus' accountant: epsilon {epsilon:.3f} at delta {DELTA:g} for adding or removing a "
        f"record in {steps} steps, if every step samples each record with probability "
        f"{BATCH / RECORDS:g} and nobody sees the sample"
    )
