"""The networks that are built by name, so that a saved estimator can be rebuilt from JSON."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.functional import linear

from prudent.errors import unknown_name

Network = TypeVar("Network", bound=type[nn.Module])

NETWORKS: dict[str, type[nn.Module]] = {}


def registered(kind: str) -> Callable[[Network], Network]:
    """Enter a class of networks under a name, and keep the arguments of each in its ``spec``."""

    def register(network: Network) -> Network:
        make: Callable[..., None] = network.__init__
        signature = inspect.signature(make)

        def initialize(self: nn.Module, *args: Any, **keywords: Any) -> None:
            make(self, *args, **keywords)
            bound = signature.bind(self, *args, **keywords)
            bound.apply_defaults()
            _, *arguments = bound.arguments.items()
            plain = {k: list(v) if isinstance(v, tuple) else v for k, v in arguments}
            self.spec = {"kind": kind, **plain}  # type: ignore[assignment]

        initialize.__signature__ = signature  # type: ignore[attr-defined]
        network.__init__ = initialize  # type: ignore[method-assign]
        NETWORKS[kind] = network
        return network

    return register


@registered("mlp")
class MLP(nn.Module):
    """Fully connected layers with SELU between them.

    Args:
        inputs: The number of inputs.
        outputs: The number of outputs, which have no activation.
        hidden: The width of each hidden layer.
    """

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (256,) * 6) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for before, after in zip(widths, widths[1:], strict=False):
            layers += [nn.Linear(before, after), nn.SELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

    def forward(self, values: Tensor, shared: Tensor | None = None) -> Tensor:
        """(..., inputs) to (..., outputs).

        Args:
            values: The inputs, or the first of them.
            shared: The other inputs, (N, B) for values (..., N, A). The first layer sees them
                once, however many values there are for each.
        """
        first, *others = self.layers
        assert isinstance(first, nn.Linear)
        width = values.shape[-1]
        hidden = linear(values, first.weight[:, :width], first.bias)
        if shared is not None:
            hidden = hidden + linear(shared, first.weight[:, width:])
        for layer in others:
            hidden = layer(hidden)
        return hidden


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


def build(spec: dict[str, Any]) -> nn.Module:
    """The network that a specification describes.

    >>> build(MLP(3, 1, hidden=(8,)).spec).spec["hidden"]
    [8]
    """
    arguments = dict(spec)
    kind = arguments.pop("kind", None)
    if kind not in NETWORKS:
        raise unknown_name("network", kind, NETWORKS)
    return NETWORKS[kind](**arguments)
