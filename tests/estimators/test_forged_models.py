"""Files of models with sound checksums and odd contents: one line, little memory, no NaN."""

import copy
import itertools
import json
import struct

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import prudent
from prudent._files import dump_tensors, load_tensors
from prudent.errors import DataError, InputError, PrudentError, StoreError
from prudent.estimators import Ensemble, FlowEstimator, RatioEstimator, base
from prudent.problems import box

PRIOR = box([0.0, 0.0], [1.0, 2.0])
SMALL = {"prior": PRIOR, "dim": 2, "hidden": (8, 4)}
CNN = {"kind": "series_cnn", "length": 8, "channels": 2, "width": 3, "num_blocks": 2}
MODELS = {
    "nre": lambda: RatioEstimator(x_shape=(3,), **SMALL),
    "npe": lambda: FlowEstimator(x_shape=(3,), transforms=2, **SMALL),
    "series": lambda: RatioEstimator(x_shape=(8, 2), embedding=dict(CNN), **SMALL),
    "ensemble": lambda: Ensemble([RatioEstimator(x_shape=(3,), **SMALL) for _ in range(2)]),
}
OTHERS = (None, True, 0, -1, 1, 1.5, 10**5, 10**9, 10**30, "x", [], [1], [10**9], [None], {})
OTHERS = (*OTHERS, {"kind": "mlp"}, [{}], [10**5] * 3, [1] * 10**4)
# One of each kind: nothing, too small, too large, of another type.
FEW = (..., None, -1, 10**9, "x", [10**9], {})
# What a model of these sizes may take: a few thousand numbers at once, and so many operations.
MOST_NUMBERS, MOST_OPERATIONS = 2**17, 20_000


class Watch(TorchDispatchMode):
    """Counts what torch does, and the numbers in its largest tensor."""

    def __init__(self):
        super().__init__()
        self.operations = self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.largest = max(self.largest, found.numel())
            assert self.largest <= MOST_NUMBERS, function
        assert self.operations <= MOST_OPERATIONS, function
        return found


@pytest.fixture(scope="module", params=MODELS)
def saved(request, tmp_path_factory):
    """The settings and tensors of a model."""
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    torch.manual_seed(0)
    made = MODELS[request.param]().eval()
    made.info = {"method": "test", "rows": [1, 2]}
    made.save(path)
    return load_tensors(path, base.FORMAT, "")


def load(path):
    """A model, or the one line that refuses it; never a NaN."""
    with Watch():
        try:
            found = prudent.load(path)
        except PrudentError as error:
            refusal = str(error)
        else:
            refusal = ""
    if refusal:
        assert "\n" not in refusal
        assert len(refusal) < 500
        return refusal
    x = torch.zeros(4, *found.x_shape)
    assert not found(x).log_prob(PRIOR.sample((4,))).isnan().any()
    repr(found)
    return found


def places(value, *above):
    """The way to every key and item of plain JSON, but for the record of the training."""
    if above:
        yield above
    inside = value.items() if isinstance(value, dict) else []
    inside = enumerate(value) if isinstance(value, list) else inside
    for key, inner in inside if above != ("info",) else ():
        yield from places(inner, *above, key)


def changed(settings, place, value):
    """The settings with another value at a place, or without it."""
    settings = copy.deepcopy(settings)
    *way, last = place
    owner = settings
    for key in way:
        owner = owner[key]
    if value is ...:
        del owner[last]
    else:
        owner[last] = value
    return settings


@pytest.mark.slow
@pytest.mark.parametrize(
    "others", [FEW, pytest.param((..., *OTHERS), marks=pytest.mark.nightly)], ids=["few", "all"]
)
def test_every_key_of_a_header_may_be_missing_or_another(saved, tmp_path, others):
    settings, state = saved
    path = tmp_path / "model.safetensors"
    refused = 0
    for place, value in itertools.product(places(settings), others):
        forged = changed(settings, place, value)
        if forged.get("format", ...) != base.FORMAT:
            continue
        path.write_bytes(dump_tensors(forged, state))
        refused += isinstance(load(path), str)
    assert refused > 5 * len(others)
    path.write_bytes(dump_tensors(settings, state))
    assert not isinstance(load(path), str)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": [10**9]},
        {"hidden": [8, 10**9]},
        {"hidden": [8] * 10**5},
        {"x_shape": [10**9]},
        {"x_shape": [10**5, 10**5]},
        {"dim": 10**9},
        {"transforms": 10**6},
    ],
    ids=str,
)
def test_no_network_is_built_that_the_file_cannot_fill(saved, tmp_path, monkeypatch, change):
    settings, state = saved
    path = tmp_path / "model.safetensors"
    member = settings["members"][0] if "members" in settings else settings
    forged = [{**settings, **change}]
    if "members" in settings:
        forged = [{**settings, "members": [{**member, **change}]}]
        forged += [{**settings, "members": [member] * 10**4}]
    monkeypatch.setattr(base.NeuralEstimator, "__init__", None)
    for one in forged:
        path.write_bytes(dump_tensors(one, state))
        with pytest.raises(PrudentError, match="larger than its tensors|prior has 2|members for"):
            prudent.load(path)


@pytest.mark.slow
def test_every_tensor_may_be_missing_or_another(saved, tmp_path):
    settings, state = saved
    path = tmp_path / "model.safetensors"
    for name, value in state.items():
        others = [None, value[None, None], value.to(torch.complex64)]
        if value.is_floating_point():
            others += [torch.full_like(value, torch.nan), torch.full_like(value, -torch.inf)]
            others += [torch.full_like(value, 1e300, dtype=torch.float64)]
        if name.endswith(".scale"):
            others += [torch.zeros_like(value), -value]
        for other in others:
            rest = {key: one for key, one in state.items() if key != name}
            forged = rest if other is None else {**rest, name: other}
            path.write_bytes(dump_tensors(settings, forged))
            assert isinstance(load(path), str), (name, other)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"scale": 0.0}, "expected numbers > 0"),
        ({"scale": -1.0}, "expected numbers > 0"),
        ({"width": 4000}, "larger than its tensors"),
        ({"num_blocks": 10**9}, "larger than its tensors"),
        ({"channels": 10**9}, "larger than its tensors"),
        ({"width": "x"}, "does not hold a sound model"),
        ({"color": 1}, "does not hold a sound model"),
        ({"kind": "resnet18"}, "does not hold a sound model"),
        ({"kind": "mlpp"}, "unknown network"),
    ],
)
def test_a_forged_embedding_is_refused(tmp_path, change, text):
    path = tmp_path / "model.safetensors"
    MODELS["series"]().save(path)
    settings, state = load_tensors(path, base.FORMAT, "")
    forged = {**settings, "embedding": {**settings["embedding"], **change}}
    path.write_bytes(dump_tensors(forged, state))
    assert text in load(path)


@pytest.mark.parametrize("text", ["[]", "[" * 10**5, '{"settings": 1}', "NaN", ""])
def test_a_header_that_is_none(tmp_path, text):
    path = tmp_path / "model.safetensors"
    write(path, "F32", 4, text)
    with pytest.raises(StoreError, match="was not written by prudent"):
        prudent.load(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 5000])
def test_numbers_that_json_does_not_have(tmp_path, number):
    path = tmp_path / "model.safetensors"
    write(path, "F32", 4, f'{{"settings": {{"format": 1, "dim": {number}}}, "sha256": ""}}')
    with pytest.raises(StoreError, match="was not written by prudent"):
        prudent.load(path)


KNOWN = json.dumps({"settings": {"format": 1}, "sha256": ""})


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("F4", 0.5), ("F6_E2M3", 0.75), ("F8_E5M2", 1), ("F8_E4M3", 1), ("F8_E8M0", 1), ("BF16", 2)],
)
def test_exotic_types_are_refused_in_one_line(tmp_path, dtype, size):
    """In files of other programs, numbers of half the size are read, and smaller ones refused."""
    path = tmp_path / "model.safetensors"
    write(path, dtype, size, KNOWN)
    with pytest.raises(StoreError, match="odd types|not a whole"):
        prudent.load(path)
    if dtype == "BF16":
        assert len(prudent.datasets.read(path)) == 16
    else:
        with pytest.raises(DataError, match=f"^[^\n]*holds {dtype}; expected real numbers.$"):
            prudent.datasets.read(path)


def write(path, dtype, size, text):
    """A safetensors file of 16 x 2 numbers, by hand."""
    length = int(32 * size)
    entries = {
        name: {"dtype": dtype, "shape": [16, 2], "data_offsets": [begin, begin + length]}
        for name, begin in (("theta", 0), ("x", length))
    }
    header = json.dumps({"__metadata__": {"prudent": text}, **entries}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(2 * length))


def test_another_prior_than_that_of_the_file(saved, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(dump_tensors(*saved))
    with pytest.raises(InputError, match="the prior has 1 parameters, the estimator 2"):
        prudent.load(path, prior=box([0.0], [1.0]))


@pytest.mark.parametrize("name", ["linear", "bounded", "bins", "history", "temperature", "floor"])
def test_what_a_file_does_not_say_is_not_made_up(name, tmp_path):
    path = tmp_path / "model.safetensors"
    Ensemble([FlowEstimator(x_shape=(3,), **SMALL)]).save(path)
    settings, state = load_tensors(path, base.FORMAT, "")
    owner = settings if name in settings else settings["members"][0]
    del owner[name]
    path.write_bytes(dump_tensors(settings, state))
    with pytest.raises(StoreError, match=f"not hold a sound model: `{name}` is "):
        prudent.load(path)
