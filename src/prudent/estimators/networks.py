"""The networks that are built by name, so that a saved estimator can be rebuilt from JSON.

Those with convolutions are the embeddings of the paper: from an observation, as the simulator
returns it, to a few features. What looks odd in them is in the paper's code too and is kept, so
that the counts of weights and the results can be compared. Weights start as torch starts them.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, max_pool2d, selu, selu_

from prudent.errors import InputError, unknown_name
from prudent.estimators._convolution import convolve, normalize

Network = TypeVar("Network", bound=type[nn.Module])
# A network, the specification of one of ours, or a function that makes one.
Embedding = nn.Module | dict[str, Any] | Callable[[], nn.Module]

NETWORKS: dict[str, type[nn.Module]] = {}

# Points of a series that go through the layers together, so that they stay in the cache.
POINTS_AT_ONCE = 2**17
# Rows whose activations, of layers some hundreds wide, stay there.
CACHED_ROWS = 2**9
# From so many images on, products of matrices are faster than torch's convolutions on a CPU.
MANY_IMAGES = 16


def registered(kind: str) -> Callable[[Network], Network]:
    """Enter a class of networks under a name, and keep the arguments of each in its ``spec``."""

    def register(network: Network) -> Network:
        make: Callable[..., None] = network.__init__

        @functools.wraps(make)
        def initialize(self: nn.Module, *args: Any, **keywords: Any) -> None:
            make(self, *args, **keywords)
            bound = inspect.signature(make).bind(self, *args, **keywords)
            bound.apply_defaults()
            _, *arguments = bound.arguments.items()
            plain = {k: list(v) if isinstance(v, tuple) else v for k, v in arguments}
            self.spec = {"kind": kind, **plain}  # type: ignore[assignment]

        network.__init__ = initialize  # type: ignore[method-assign]
        NETWORKS[kind] = network
        return network

    return register


@registered("mlp")
class MLP(nn.Module):
    """Fully connected layers of widths ``hidden`` with SELU after each; none after the outputs."""

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (256,) * 6) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for before, after in zip(widths, widths[1:], strict=False):
            layers += [nn.Linear(before, after), nn.SELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

    def forward(self, values: Tensor, shared: Tensor | None = None) -> Tensor:
        """(..., inputs) to (..., outputs).

        If ``values`` (..., N, A) are only the first of the inputs, the others are ``shared``
        (N, B); the first layer sees those once, however many values there are for each.
        """
        first, *others = self.layers
        assert isinstance(first, nn.Linear)
        width = values.shape[-1]
        hidden = linear(values, first.weight[:, :width], first.bias)
        if shared is not None:
            hidden = hidden + linear(shared, first.weight[:, width:])
        shape = hidden.shape[:-1]
        hidden = hidden.reshape(-1, hidden.shape[-1])  # torch is faster with rows
        if torch.is_grad_enabled() or hidden.device.type != "cpu":
            outputs = _through(others, hidden)
        else:  # without a graph, which keeps all activations, they need not leave the cache
            outputs = torch.cat([_through(others, part) for part in hidden.split(CACHED_ROWS)])
        return outputs.reshape(*shape, outputs.shape[-1])


def _through(layers: Iterable[nn.Module], values: Tensor) -> Tensor:
    """The outputs of layers, the first of which may change the values."""
    for layer in layers:
        # In place, as nothing else looks at what a linear layer returns.
        values = selu_(values) if isinstance(layer, nn.SELU) else layer(values)
    return values


@registered("flatten")
class Flatten(nn.Flatten):
    """No embedding: the observation itself, as one vector."""

    def __init__(self) -> None:
        super().__init__()


@registered("flatten_mlp")
class FlattenMLP(nn.Sequential):
    """An observation of any shape through fully connected layers."""

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (64,) * 3) -> None:
        super().__init__(nn.Flatten(), MLP(inputs, outputs, hidden))


@registered("series_cnn")
class SeriesCNN(nn.Module):
    """Convolutions and pooling for a time series, as used for Lotka-Volterra.

    A convolution of width one without activation, then blocks of convolution, SELU and maximum
    over three. Every other pooling halves the length, the first included: 1001 becomes 501, 501,
    251, 251, 126, 126, 63, 63. The division of ``x`` by ``scale`` is part of the network, because
    the paper divides populations by 100 and does nothing else to them.

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
            layers += [nn.Conv1d(width, width, 3, padding=1), nn.SELU()]
            layers += [nn.MaxPool1d(3, stride=stride, padding=1)]
            length = (length - 1) // stride + 1
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.scale = scale
        self.features = width * length

    def forward(self, x: Tensor) -> Tensor:
        """Features of ``x``."""
        # As images of one row, which torch convolves and pools as they are: channels are last in
        # memory. SELU increases, so that it may as well come after the maximum, for fewer numbers.
        values = (x / self.scale).transpose(1, 2).unsqueeze(2)
        for layer in self.layers.children():
            if isinstance(layer, nn.Conv1d):
                margin = (0, layer.kernel_size[0] // 2)
                values = conv2d(values, layer.weight.unsqueeze(2), layer.bias, padding=margin)
            elif isinstance(layer, nn.MaxPool1d):
                assert isinstance(layer.stride, int)
                values = selu(max_pool2d(values, (1, 3), (1, layer.stride), (0, 1)))
        return values.flatten(1)


@registered("dilated_cnn")
class DilatedCNN(nn.Module):
    """Convolutions of width two whose reach doubles, as used for gravitational waves.

    A convolution of width one without activation, then layers of convolution and SELU with
    dilation 1, 2, 4 and so on, without padding. As many layers as it takes to turn a series of
    ``2 ** num_layers`` points into a single one: 13 for 8192. That one depends on every other
    point of the first layer, every fourth of the second and so on; no other point is computed.

    Shape:
        ``x`` (N, channels, 2 ** num_layers), a channel for each detector, to (N, width). A longer
        series has more points at the end, whose features are not summarized.
    """

    def __init__(self, num_layers: int = 13, channels: int = 2, width: int = 16) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(channels, width, 1)]
        for i in range(num_layers):
            layers += [nn.Conv1d(width, width, 2, dilation=2**i), nn.SELU()]
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.reach = 2**num_layers
        self.features = width

    def forward(self, x: Tensor) -> Tensor:
        """Features of ``x``."""
        length = x.shape[-1]
        if length < self.reach:
            raise InputError(f"expected series of {self.reach} points or more, got {length}.")
        if length > self.reach or length == 1:
            output: Tensor = self.layers(x)
            return output
        matrices = self._matrices()
        parts = x.split(max(1, POINTS_AT_ONCE // length))
        return torch.cat([self._last_point(part, matrices) for part in parts])

    def _matrices(self) -> list[tuple[Tensor, Tensor]]:
        """The layers as matrices and biases, from two neighboring points to one."""
        layers: list[Any] = [m for m in self.layers.children() if isinstance(m, nn.Conv1d)]
        pointwise, *pairwise = layers
        weights = [layer.weight.transpose(1, 2) for layer in pairwise]  # (width, 2, width)
        biases = [layer.bias for layer in pairwise]
        # The pointwise layer is linear, so the next one takes it in.
        biases[0] = biases[0] + (weights[0] @ pointwise.bias).sum(dim=1)
        weights[0] = weights[0] @ pointwise.weight.squeeze(2)
        return [(w.flatten(1), b) for w, b in zip(weights, biases, strict=True)]

    def _last_point(self, x: Tensor, matrices: list[tuple[Tensor, Tensor]]) -> Tensor:
        hidden = x.transpose(1, 2).flatten(0, 1)  # (points, channels)
        for weight, bias in matrices:
            pairs = hidden.reshape(len(hidden) // 2, 2 * hidden.shape[1])
            hidden = selu_(linear(pairs, weight, bias))
        return hidden


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, added and activated."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, normalized: bool) -> None:
        super().__init__()
        normalize = nn.BatchNorm2d if normalized else nn.Identity  # which takes any argument
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            normalize(outputs),
            nn.LeakyReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            normalize(outputs),
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

    def pixels_first(self, image: Tensor) -> Tensor:
        """The same for (H, inputs, W, N), as :func:`convolve` takes and returns images."""
        hidden = _pixels_first(self.convolutions, image)
        output: Tensor = self.activation(hidden + _pixels_first(self.shortcut, image))
        return output


def _pixels_first(layers: nn.Module, image: Tensor) -> Tensor:
    for layer in layers.children():  # of a shortcut that does nothing there are none
        if isinstance(layer, nn.Conv2d):
            image = convolve(image, layer.weight, layer.stride[0])
        elif isinstance(layer, nn.BatchNorm2d):
            image = normalize(image, layer)
        else:
            image = layer(image)
    return image


@registered("resnet18")
class ResNet18(nn.Module):
    """ResNet-18 for images, as used for spatial SIR.

    It differs from the usual one, and this is how the paper's code has it: LeakyReLU throughout;
    batch normalization in the first block of each of the four stages and in the 1 x 1 shortcuts,
    but neither after the first convolution nor in the second blocks; no convolution has a bias.

    Batch statistics are used while training, so a row's features then depend on its batch, and the
    batch must hold more than one image if the last stage sees a single pixel.

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
            layers += [ResidualBlock(width, planes, stride, normalized=True)]
            layers += [ResidualBlock(planes, planes, 1, normalized=False)]
            width = planes
        self.layers = nn.Sequential(*layers)
        self.features = width

    def forward(self, x: Tensor) -> Tensor:
        """Features of ``x``."""
        if x.device.type != "cpu" or len(x) < MANY_IMAGES:
            return torch.mean(self.layers(x), dim=(-2, -1))
        first = x.contiguous(memory_format=torch.channels_last)
        image: Tensor = self.layers[:3](first).permute(2, 1, 3, 0)
        for block in self.layers.children():
            if isinstance(block, ResidualBlock):
                image = block.pixels_first(image)
        return torch.mean(image, dim=(0, 2)).T


def build(network: Embedding) -> nn.Module:
    """The network that is given, that a function makes, or that a specification describes.

    >>> build(MLP(3, 1, hidden=(8,)).spec).spec["hidden"]
    [8]
    """
    if isinstance(network, dict):
        arguments = dict(network)
        kind = arguments.pop("kind", None)
        if kind not in NETWORKS:
            raise unknown_name("network", kind, NETWORKS)
        return NETWORKS[kind](**arguments)
    made = network if isinstance(network, nn.Module) else network()
    if not isinstance(made, nn.Module):
        raise InputError(
            "expected `embedding` as a network or a function that makes one, got "
            f"{type(made).__name__}."
        )
    return made
