"""Files of other programs: what is read, and hostile files that are not."""

import io
import sys
import zipfile

import h5py
import numpy as np
import pytest
import safetensors.numpy
import torch

from faults import mutations, peak_memory, tree_digest
from prudent.datasets import Pairs
from prudent.datasets.readers import read
from prudent.datasets.simulate import simulate
from prudent.errors import DataError, InputError, PrudentError

THETA = np.arange(6.0).reshape(3, 2)
X = np.arange(12.0).reshape(3, 2, 2)


def write_npz(path, theta=THETA, x=X):
    np.savez(path, theta=theta, x=x)


def write_safetensors(path, theta=THETA, x=X):
    path.write_bytes(safetensors.numpy.save({"theta": theta, "x": x}))


def write_hdf5(path, theta=THETA, x=X):
    with h5py.File(path, "w") as file:
        file["theta"], file["x"] = theta, x


WRITERS = {
    "sims.npz": write_npz,
    "sims.NPZ": lambda path: (
        np.savez_compressed(path.with_suffix(".npz"), theta=THETA, x=X),
        path.with_suffix(".npz").rename(path),
    ),
    "sims.safetensors": write_safetensors,
    "sims.h5": write_hdf5,
    "sims.hdf5": lambda path: write_hdf5(path, THETA.astype(">f4"), X.astype(int)),
    "fortran.npz": lambda path: write_npz(path, np.asfortranarray(THETA), X.astype(">f8")),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_was_written_is_read(tmp_path, name):
    WRITERS[name](tmp_path / name)
    before = tree_digest(tmp_path)
    pairs = read(tmp_path / name)
    assert isinstance(pairs, Pairs)
    assert torch.equal(pairs.theta, torch.tensor(THETA, dtype=torch.float32))
    assert torch.equal(pairs.x, torch.tensor(X, dtype=torch.float32))
    assert tree_digest(tmp_path) == before


def test_compressed_hdf5_is_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("theta", data=THETA, compression="gzip", shuffle=True)
        file.create_dataset("x", data=X, compression="lzf", fletcher32=True)
    assert len(read(tmp_path / "a.h5")) == 3


def test_a_store_is_read(tmp_path):
    store = simulate("gaussian", 20, tmp_path / "s.zarr", progress=False)
    assert torch.equal(read(store.path).x, store.pairs().x)
    with pytest.raises(InputError, match="not a store of simulations"):
        read(tmp_path)


@pytest.mark.parametrize("suffix", ["pt", "pth", "pkl", "pickle", "joblib", "PT", "ckpt"])
def test_pickles_are_refused_unopened(tmp_path, suffix):
    path = tmp_path / f"sims.{suffix}"
    with pytest.raises(InputError) as error:
        read(path)
    assert str(error.value) == (
        f"`sims.{suffix}` is a pickle and could run code. "
        "Convert it where you trust it: "
        'safetensors.torch.save_file({"theta": t, "x": x}, "sims.safetensors")'
    )


def test_unknown_files_list_the_known(tmp_path):
    with pytest.raises(InputError, match=r"known are .csv .dat .h5 .hdf5 .nc .npy .npz"):
        read(tmp_path / "sims.fits")
    with pytest.raises(InputError, match="no file"):
        read(tmp_path / "sims.npz")


class Evil:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, sentinel):
        self.sentinel = sentinel

    def __reduce__(self):
        return open, (str(self.sentinel), "w")


def pickled(value):
    import pickle  # noqa: TID251

    return pickle.dumps(value)


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "h5"])
def test_a_pickle_under_another_name_does_not_run(tmp_path, suffix):
    sentinel = tmp_path / "pwned"
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(pickled({"theta": Evil(sentinel), "x": Evil(sentinel)}))
    with pytest.raises(DataError):
        read(path)
    if suffix == "npz":
        write_npz(path, np.array([[Evil(sentinel)]], dtype=object), X[:1])
        with pytest.raises(InputError, match="`theta` in .* holds object; expected real numbers"):
            read(path)
    assert not sentinel.exists()


def npy(descr, shape, data=b""):
    file = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + data


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)


X_NPY = npy("<f8", (3, 4), X.tobytes())
X_MEMBER = ("x.npy", X_NPY)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("x.npy", X_NPY)], "no `theta` in .*found: x\\."),
        ([("theta.npy", X_NPY), ("theta.npy", X_NPY), ("x.npy", X_NPY)], "two members"),
        ([("theta", X_NPY), ("theta.npy", X_NPY), ("x.npy", X_NPY)], "two members"),
        (
            [("theta.npy", npy("<f8", (10**9, 2)))],
            "declares shape",
        ),
        (
            [("theta.npy", npy("<f8", (-1, 2)))],
            "declares shape",
        ),
        (
            [("theta.npy", npy("<f8", (1, 2), X_NPY))],
            "does not hold what its shape",
        ),
        (
            [
                (
                    "theta.npy",
                    npy("<U4", (1, 1), b"a" * 16),
                )
            ],
            "holds <U4",
        ),
        (
            [
                (
                    "theta.npy",
                    npy("<c8", (1, 1), b"a" * 8),
                )
            ],
            "holds complex64",
        ),
        ([("theta.npy", b"not an array")], "damaged or not .npz"),
    ],
)
def test_hostile_archives_are_refused(tmp_path, members, message):
    zipped(tmp_path / "a.npz", members if members[-1][0] == "x.npy" else [*members, X_MEMBER])
    with pytest.raises(PrudentError, match=message):
        read(tmp_path / "a.npz")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    size = 2**26
    zeros = npy("<f8", (size // 16, 2), bytes(size))
    zipped(tmp_path / "a.npz", [("theta.npy", zeros), ("x.npy", X_NPY)])

    def refuse():
        with pytest.raises(InputError, match=r"declares 67,\d+,\d+ bytes in 6\d,\d+ stored"):
            read(tmp_path / "a.npz")

    def unpack():
        with np.load(tmp_path / "a.npz") as arrays:
            return arrays["theta"]

    assert peak_memory(refuse) < 2e7
    assert peak_memory(unpack) > size


def external(file, path):
    (path.parent / "secret").write_bytes(bytes(48))
    file.create_dataset("theta", (3, 2), "f8", external=[(str(path.parent / "secret"), 0, 48)])


def virtual(file, path):
    write_hdf5(path.parent / "other.h5")
    layout = h5py.VirtualLayout((3, 2), "f8")
    layout[:] = h5py.VirtualSource(path.parent / "other.h5", "theta", (3, 2))
    file.create_virtual_dataset("theta", layout)


def external_link(file, path):
    write_hdf5(path.parent / "other.h5")
    file["theta"] = h5py.ExternalLink(str(path.parent / "other.h5"), "theta")


def soft_link(file, path):
    file["y"] = THETA
    file["theta"] = h5py.SoftLink("/y")


def plugin(file, path):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((3, 2))
    plist.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((3, 2))
    h5py.h5d.create(file.id, b"theta", h5py.h5t.NATIVE_DOUBLE, space, plist)


HDF5 = {
    "external data": (external, "keeps its data in other files"),
    "virtual": (virtual, "keeps its data in other files"),
    "external link": (external_link, "is a link to another place"),
    "soft link": (soft_link, "is a link to another place"),
    "plugin": (plugin, "needs HDF5 filter 32015"),
    "shape": (
        lambda file, path: file.create_dataset("theta", (10**12, 1000), "f8", chunks=(1, 1000)),
        "declares 8,000,000,000,000,000 bytes",
    ),
    "object": (
        lambda file, path: file.create_dataset("theta", data=["a"], dtype=h5py.string_dtype()),
        "holds object",
    ),
    "compound": (
        lambda file, path: file.create_dataset("theta", (3,), [("a", "f8")]),
        "is a table of columns a; save each",
    ),
    "group": (lambda file, path: file.create_group("theta"), "no `theta` .* found: x"),
    "empty": (lambda file, path: file.create_dataset("theta", data=h5py.Empty("f8")), "is empty"),
    "nothing": (lambda file, path: None, "no `theta`"),
}


@pytest.mark.parametrize("name", HDF5)
def test_hostile_hdf5_is_refused(tmp_path, name):
    make, message = HDF5[name]
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        make(file, path)
        file["x"] = X
    with pytest.raises(InputError, match=message) as error:
        read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["sims.npz", "sims.safetensors", "sims.h5"])
def test_damaged_files_give_our_error_or_other_numbers(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    whole = path.read_bytes()
    messages = []
    for damaged in mutations(whole, flips=150):
        path.write_bytes(damaged)
        try:
            read(path)
        except PrudentError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert not any("\n" in message for message in messages)


def test_numbers_beyond_float32_are_named(tmp_path):
    write_npz(tmp_path / "a.npz", THETA * 1e300)
    with pytest.raises(InputError, match="not finite in float32"):
        read(tmp_path / "a.npz")


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    write_hdf5(tmp_path / "a.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r'HDF5 files need h5py\. .* -e "\.\[hdf5\]"'):
        read(tmp_path / "a.h5")
