"""Train your own convolutional network, and see what clipping norm and participation do.

Run it: python 03_mnist_cnn.py [--mnist] [--rounds N]

Noise grows with the number of parameters, so the network is small: 690 parameters for the digits,
2,074 for MNIST. The epsilons are proven, in nats, for replacing one client, against an attacker who
sees the shuffled reports. They do not depend on the clipping norm, because noise grows with it.

Expected output:

    clipping norm 0.25, participation 1: accuracy 51.3%, epsilon 4.48
    clipping norm 1, participation 1: accuracy 75.2%, epsilon 4.48
    clipping norm 1, participation 0.5: accuracy 61.0%, epsilon 6.97
"""

from __future__ import annotations

import argparse

from torch import nn

import fl_shuffle as fs

CONFIG = {
    "run": {"seed": 1},
    "data": {"source": "digits", "clients": 718, "features": "pixels"},
    # In a configuration file, name the module that holds your function: "my_networks:network".
    "model": {"kind": "__main__:network"},
    "privacy": {"unit": "client", "target_delta": 1e-5},
    "budgets": {"epsilon": 8.0, "delta": 1e-5},
    "server": {"optimizer": "momentum", "learning_rate": 0.5},
}
MNIST = {"data.source": "mnist", "data.clients": 10_000, "data.records_per_client": 6}


def network(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return a network for pictures of shape (channels, height, width).

    It has no batch normalization, which mixes records: no epsilon would cover that. Layers with a
    stride shrink the picture, so that few weights are left for the last layer.
    """
    channels, height, width = input_shape
    stride = 2 if height < 20 else 4
    rows, columns = -(-height // stride), -(-width // stride)
    return nn.Sequential(
        nn.Conv2d(channels, 4, kernel_size=stride + 1, stride=stride, padding=stride // 2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * rows * columns, classes),
    )


def main() -> None:
    """Run three federations, and print the accuracy and the epsilon of each."""
    options = argparse.ArgumentParser(description="A convolutional network.")
    options.add_argument("--mnist", action="store_true", help="10,000 clients with MNIST images")
    options.add_argument("--rounds", type=int, default=20, help="number of rounds")
    given = options.parse_args()
    shared = {"run.rounds": given.rounds} | (MNIST if given.mnist else {})

    for clip_norm, participation in ((0.25, 1.0), (1.0, 1.0), (1.0, 0.5)):
        # Fewer clients in a round are fewer to hide among, and their mean has more noise. Nothing
        # is credited for the random choice: the attacker may know who takes part.
        settings = {"privacy.clip_norm": clip_norm, "training.participation": participation}
        result = fs.simulate(CONFIG, overrides=shared | settings)
        print(
            f"clipping norm {clip_norm:g}, participation {participation:g}: "
            f"accuracy {result.accuracy:.1%}, epsilon {result.epsilon:.2f}"
        )


if __name__ == "__main__":
    main()
