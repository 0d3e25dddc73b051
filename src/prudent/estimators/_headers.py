"""What the header of a model file says, compared with its tensors before anything is built.

A checksum does not guard against forgery. A network has no weights that its file does not hold, so
that the file bounds the memory and the time that loading it can take.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from prudent._settings import whole
from prudent.errors import InputError, StoreError, shortened

# Numbers of one observation that any file may announce, and with a network of the user's own.
MOST_NUMBERS = 2**20
MOST_OWN_NUMBERS = 2**26
MOST_SIDES = 16
# Numbers that building takes beside the weights.
SLACK = 2**12
FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.arange}


class Header:
    """The settings of an estimator beside the tensors of its file."""

    def __init__(self, settings: Any, state: Mapping[str, Tensor]) -> None:
        self.settings, self.state = settings, state
        self.shapes = {tuple(value.shape) for value in state.values()}
        self.size = sum(value.numel() for value in state.values())

    def value(self, name: str, kind: type, owner: Any = None) -> Any:
        """A setting of some type, by default one of the whole file."""
        owner = self.settings if owner is None else owner
        found = owner.get(name) if isinstance(owner, dict) else None
        if not isinstance(found, kind):
            raise StoreError(f"`{name}` is {shortened(repr(found))}; expected a {kind.__name__}")
        return found

    def members(self) -> list[Any]:
        """The settings of the members of an ensemble."""
        members: list[Any] = self.value("members", list)
        if not 0 < len(members) <= len(self.state):
            raise StoreError(f"{len(members):,} members for {len(self.state):,} tensors")
        return members

    def check(self, one: Any, dim: int, *, own_embedding: bool) -> None:
        """Refuse an estimator whose numbers prior and tensors do not justify."""
        try:
            announced = whole("dim", self.value("dim", int, one), 1)
            x_shape, hidden = (
                [whole(name, side, 1) for side in self.value(name, list, one)]
                for name in ("x_shape", "hidden")
            )
            transforms = whole("transforms", one.get("transforms", 1), 1)
        except InputError as error:
            raise StoreError(str(error).rstrip(".")) from error
        if announced != dim:
            raise InputError(f"the prior has {dim} parameters, the estimator {announced}.")
        largest = MOST_OWN_NUMBERS if own_embedding else max(MOST_NUMBERS, self.size)
        vector = len(x_shape) == 1
        if (
            not {(dim,), (dim - 1,)} & self.shapes  # shares of a whole have one number less
            or {(width,) for width in hidden} - self.shapes
            or {(after, before) for before, after in itertools.pairwise(hidden)} - self.shapes
            or (vector and tuple(x_shape) not in self.shapes)
            or not 0 < len(x_shape) <= MOST_SIDES
            or math.prod(x_shape) > largest
            or max(transforms, len(hidden)) > len(self.state)
        ):
            raise StoreError("it announces networks that are larger than its tensors")
        if not own_embedding and one.get("embedding") is not None:
            _check_numbers(self.value("embedding", dict, one))

    def bounded(self, described: Sequence[Mapping[str, Any]]) -> "_Bounded":
        """A context in which no more can be built than the file holds."""
        trials = sum(2 * math.prod(one["x_shape"]) for one in described)
        return _Bounded(2 * self.size + trials + SLACK * len(described))


def _check_numbers(spec: dict[str, Any]) -> None:
    """All numbers in the specification of a network are widths, counts or divisors."""
    numbers = [value if isinstance(value, list) else [value] for value in spec.values()]
    for value in itertools.chain(*numbers):
        if not isinstance(value, str) and not (type(value) in (int, float) and value > 0):
            raise StoreError(f"its embedding has {shortened(repr(value))}; expected numbers > 0")


class _Bounded(TorchFunctionMode):
    """Counts the numbers of new tensors and refuses the one too many before it is made."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.left = most

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in FACTORIES:
            sides = args[0] if args and isinstance(args[0], tuple | list) else args
            size = math.prod(side for side in sides if isinstance(side, int))
            self.left -= 1 + max(size, 0)
            if self.left < 0:
                raise StoreError("it announces networks that are larger than its tensors")
        return function(*args, **(kwargs or {}))


def check_weights(tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights from which no density could be computed."""
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise StoreError(f"`{name}` holds NaN or infinity")
        least = {"scale": 0.0, "running_var": -1e-30}.get(name.rpartition(".")[2])
        if least is not None and not bool((value > least).all()):
            raise StoreError(f"`{name}` holds numbers that are not positive")
