"""The networks that are built by name, so that a saved estimator can be rebuilt from JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear

from prudent.errors import unknown_name
from prudent.estimators.embeddings import DilatedCNN, ResNet18, SeriesCNN

__all__ = ["MLP", "Flatten", "build"]


class MLP(nn.Module):
    """Fully connected layers with SELU between them.

    Args:
        inputs: Numbers in.
        outputs: Numbers out, without activation.
        hidden: Width of each hidden layer.
    """

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (256,) * 6) -> None:
        super().__init__()
        self.spec = {
            "kind": "mlp",
            "inputs": inputs,
            "outputs": outputs,
            "hidden": list(hidden),
        }
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


class Flatten(nn.Flatten):
    """No embedding: the observation itself, as one vector."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = {"kind": "flatten"}


class FlattenMLP(nn.Sequential):
    """An observation of any shape through fully connected layers."""

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int] = (64,) * 3) -> None:
        super().__init__(nn.Flatten(), MLP(inputs, outputs, hidden))
        self.spec = {
            "kind": "flatten_mlp",
            "inputs": inputs,
            "outputs": outputs,
            "hidden": list(hidden),
        }


KINDS: dict[str, type[nn.Module]] = {
    "mlp": MLP,
    "flatten": Flatten,
    "flatten_mlp": FlattenMLP,
    "series_cnn": SeriesCNN,
    "dilated_cnn": DilatedCNN,
    "resnet18": ResNet18,
}


def build(spec: dict[str, Any]) -> nn.Module:
    """The network that a specification describes.

    >>> build(MLP(3, 1, hidden=(8,)).spec).spec["hidden"]
    [8]
    """
    arguments = dict(spec)
    kind = arguments.pop("kind", None)
    if kind not in KINDS:
        raise unknown_name("network", kind, KINDS)
    return KINDS[kind](**arguments)
