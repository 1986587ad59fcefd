"""Models that a configuration names: pictures and sequences of tokens.

Each keeps records apart: group norms in place of batch norms, and no dropout. Their numbers of
parameters matter more than without privacy, since the noise of a report grows with its root.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_shuffle.configuration.sections import ModelSection
from fl_shuffle.errors import ConfigError

WIDTHS = {"cnn": 16, "resnet": 16, "lstm": 128}
"""`model.width` where it is 0."""
SMALL_SIDE = 16
"""Pictures with a shorter side get small kernels and no strides."""
LEAST_SIDE = 4
GROUPS = 4
"""Groups of channels that are normalized together."""
EMBEDDING = 8
"""Numbers of a token's embedding, as in the LEAF benchmark's character model."""


def named_model(section: ModelSection, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the model `section.kind` ("cnn", "resnet" or "lstm") for records of this shape.

    Raises `ConfigError` for records that are no pictures [channels, height, width], or no sequences
    [length], and for a width that cannot be cut into groups.
    """
    width = section.width or WIDTHS[section.kind]
    if section.kind == "lstm":
        if len(shape) != 1:
            raise _wrong_shape(section.kind, "sequences of tokens, [length]", shape, "none")
        return CharacterLSTM(section.vocabulary or classes, width, classes)
    if len(shape) != 3 or min(shape[1:]) < LEAST_SIDE:
        wanted = f"pictures [channels, height, width] of at least {LEAST_SIDE} x {LEAST_SIDE}"
        raise _wrong_shape(section.kind, wanted, shape, "pixels")
    if section.kind == "cnn":
        return convolutional_network(shape, width, classes)
    if width % GROUPS:
        raise ConfigError(
            f"model.width = {width}: a resnet's width must be a multiple of {GROUPS}, for "
            "example 16: its "
            "channels are normalized in groups"
        )
    return ResidualNetwork(shape[0], width, classes)


def _wrong_shape(kind: str, wanted: str, shape: tuple[int, ...], features: str) -> ConfigError:
    return ConfigError(
        f"model.kind = {kind!r} needs {wanted}, and gets records of shape {list(shape)}; set "
        f"data.features = {features!r}, or choose another model"
    )


def convolutional_network(shape: tuple[int, ...], width: int, classes: int) -> nn.Sequential:
    """Return two convolutions, two poolings, and two linear layers.

    At 28 x 28 gray pictures and width 16 this is the network of 26,010 parameters that papers on
    private learning train on MNIST (Papernot et al. 2021, table 1). Pictures whose shorter side is
    below `SMALL_SIDE` get 3 x 3 kernels.
    """
    channels, height, width_of_picture = shape
    if min(height, width_of_picture) < SMALL_SIDE:
        body = [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    else:
        body = [
            nn.Conv2d(channels, width, 8, stride=2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(width, 2 * width, 4, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=1),
        ]
    with torch.no_grad():
        numbers = nn.Sequential(*body)(torch.zeros(1, *shape)).numel()
    head = [nn.Flatten(), nn.Linear(numbers, 32), nn.ReLU(), nn.Linear(32, classes)]
    return nn.Sequential(*body, *head)


class ResidualBlock(nn.Module):
    """Two convolutions with group norms, around which the input is led."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, width)
        self.shortcut = (
            nn.Conv2d(channels, width, 1, stride, bias=False)
            if stride > 1 or channels != width
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(hidden)) + self.shortcut(x))


class ResidualNetwork(nn.Module):
    """A residual network of nine convolutions with group norms, for pictures of about 32 x 32.

    A stem, three blocks of `width`, twice and four times as many channels, and one linear layer of
    the channels' means: 75,000 parameters at width 16.
    """

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(GROUPS, width)
        self.blocks = nn.Sequential(
            ResidualBlock(width, width, 1),
            ResidualBlock(width, 2 * width, 2),
            ResidualBlock(2 * width, 4 * width, 2),
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.blocks(F.relu(self.norm(self.stem(x))))
        out: Tensor = self.head(hidden.mean((2, 3)))
        return out


class CharacterLSTM(nn.Module):
    """Tokens [N, length] to classes [N, classes]: an embedding, one LSTM, and a linear layer.

    The class is read off the state after the last token. A token that is not in the vocabulary
    raises, and its record counts as zero.
    """

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x.long()))
        out: Tensor = self.head(states[:, -1])
        return out
