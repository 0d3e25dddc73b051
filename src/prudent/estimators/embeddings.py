r"""The embedding networks of the paper: from an observation to a few features.

Each takes ``x`` (N, \*x_shape) as the simulator returns it and gives (N, features). What looks
odd in them is in the paper's code too and is kept, so that the counts of weights and the results
can be compared. Weights start as torch starts them.
"""

import torch
from torch import Tensor, nn

from prudent.estimators.networks import registered


@registered("series_cnn")
class SeriesCNN(nn.Module):
    """Convolutions and pooling for a time series, as used for Lotka-Volterra.

    A convolution of width one without activation, then blocks of convolution, SELU and maximum
    over three. Every other pooling halves the length, the first included: 1001 becomes 501, 501,
    251, 251, 126, 126, 63, 63. The division by ``scale`` is part of the network, because the paper
    divides populations by 100 and does nothing else to them.

    Args:
        length: The number of points in the series.
        channels: The number of values at each point.
        width: The number of channels of the convolutions.
        num_blocks: The number of blocks.
        scale: The number that ``x`` is divided by.

    Shape:
        ``x`` (N, length, channels) to (N, features).
    """

    def __init__(
        self,
        length: int = 1001,
        channels: int = 2,
        width: int = 8,
        num_blocks: int = 8,
        scale: float = 100.0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(channels, width, 1)]
        for i in range(num_blocks):
            stride = 2 if i % 2 == 0 else 1
            layers += [
                nn.Conv1d(width, width, 3, padding=1),
                nn.SELU(),
                nn.MaxPool1d(3, stride=stride, padding=1),
            ]
            length = (length - 1) // stride + 1
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.scale = scale
        self.features = width * length

    def forward(self, x: Tensor) -> Tensor:
        """Features of ``x``."""
        output: Tensor = self.layers((x / self.scale).transpose(1, 2))
        return output


@registered("dilated_cnn")
class DilatedCNN(nn.Module):
    """Convolutions of width two whose reach doubles, as used for gravitational waves.

    A convolution of width one without activation, then layers of convolution and SELU with
    dilation 1, 2, 4 and so on, without padding. As many layers as it takes to turn a series of
    ``2 ** num_layers`` points into a single one: 13 for 8192.

    Args:
        num_layers: The number of layers after the first.
        channels: The number of series, one for each detector.
        width: The number of channels of the convolutions, and of features.

    Shape:
        ``x`` (N, channels, 2 ** num_layers) to (N, features).
    """

    def __init__(self, num_layers: int = 13, channels: int = 2, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(channels, width, 1)]
        for i in range(num_layers):
            layers += [nn.Conv1d(width, width, 2, dilation=2**i), nn.SELU()]
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.features = width

    def forward(self, x: Tensor) -> Tensor:
        """Features of ``x``."""
        output: Tensor = self.layers(x)
        return output


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, added and activated."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, normalized: bool) -> None:
        super().__init__()

        def normalize() -> nn.Module:
            return nn.BatchNorm2d(outputs) if normalized else nn.Identity()

        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            normalize(),
            nn.LeakyReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            normalize(),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))
        self.activation = nn.LeakyReLU()

    def forward(self, image: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride), sides rounded up."""
        output: Tensor = self.activation(self.convolutions(image) + self.shortcut(image))
        return output


@registered("resnet18")
class ResNet18(nn.Module):
    """ResNet-18 for images, as used for spatial SIR.

    It differs from the usual one, and this is how the paper's code has it: LeakyReLU throughout;
    batch normalization in the first block of each of the four stages and in the 1 x 1 shortcuts,
    but neither after the first convolution nor in the second blocks; no convolution has a bias.

    Batch statistics are used while training, so a row's features then depend on its batch, and the
    batch must hold more than one image if the last stage sees a single pixel.

    Args:
        channels: The number of channels of the image.

    Shape:
        ``x`` (N, channels, H, W) to (N, features), averaged over pixels, so for any H and W.
    """

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        width = 64
        layers: list[nn.Module] = [
            nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
            nn.LeakyReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        for planes, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [
                ResidualBlock(width, planes, stride, normalized=True),
                ResidualBlock(planes, planes, 1, normalized=False),
            ]
            width = planes
        self.layers = nn.Sequential(*layers)
        self.features = width

    def forward(self, x: Tensor) -> Tensor:
        """Features of ``x``."""
        return torch.mean(self.layers(x), dim=(-2, -1))
