"""A device that is not there: tensors whose numbers are real, and which may not be mixed.

``with elsewhere() as device:`` makes ``device`` a place for tensors. They compute on the CPU, but
every operation that real hardware would refuse is refused: operands on two devices, a generator of
another one, numpy. What stays on the CPU by mistake is so found without an accelerator. As the
name of the device serves ``meta``, which torch knows everywhere.
"""

import contextlib
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
aten = torch.ops.aten
# They copy from one device to another.
COPIES = {aten.copy_.default, aten._to_copy.default}
# They read numbers into Python.
READS = {aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


class Elsewhere(torch.Tensor):
    """A tensor that says it is on the device."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
            requires_grad=held.requires_grad,
        )

    def __init__(self, held):
        self.held = held

    def __repr__(self, **_):
        return f"Elsewhere({self.held})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


def is_elsewhere(value):
    return isinstance(value, Elsewhere)


def run(function, args, kwargs):
    """One operation, as hardware would do it."""
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    away = [one for one in tensors if is_elsewhere(one)]
    asked = kwargs.get("device")
    target = bool(away) if asked is None else torch.device(asked) == DEVICE
    here = [one for one in tensors if not is_elsewhere(one) and one.ndim > 0]
    indices = function in INDEXING and all(not one.is_floating_point() for one in here)
    if away and here and function not in COPIES and not indices:
        shapes = [tuple(one.shape) for one in here]
        raise RuntimeError(f"{function}: tensors on meta and on cpu, the latter of {shapes}")
    generator = kwargs.get("generator")
    if generator is not None and target:
        raise RuntimeError(f"{function}: a generator of {generator.device} for {DEVICE}")
    held = tree_map(lambda one: one.held if is_elsewhere(one) else one, (args, kwargs))
    if asked is not None:
        held[1]["device"] = torch.device("cpu")
    found = function(*held[0], **held[1])
    if function in READS:
        return found
    if function is aten.copy_.default:
        return args[0]
    if not target:
        if isinstance(found, torch.Tensor) and asked is not None and away:
            return found.clone() if found is tensors[0] else found
        return found
    changed = {id(one.held): one for one in away}  # in place

    def wrapped(one):
        if not isinstance(one, torch.Tensor):
            return one
        return changed[id(one)] if id(one) in changed else Elsewhere(one)

    return tree_map(wrapped, found)


class Hardware(TorchDispatchMode):
    """Catches what makes tensors on the device from nothing, or moves them there."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        there = kwargs.get("device") is not None and torch.device(kwargs["device"]) == DEVICE
        if there or any(map(is_elsewhere, tensors)):
            return run(function, args, kwargs)
        return function(*args, **kwargs)


@contextlib.contextmanager
def elsewhere():
    """The device, inside a block."""
    numpy = torch.Tensor.numpy

    def refused(self, **options):
        if is_elsewhere(self):
            raise TypeError("cannot convert a tensor that is elsewhere to numpy")
        return numpy(self, **options)

    with Hardware(), patch.object(torch.Tensor, "numpy", refused):
        yield DEVICE
