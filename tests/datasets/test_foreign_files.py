"""Files of other programs, format by format and defect by defect.

What is unambiguous is taken, and gives the same pairs from every format. For the rest the command
says one line, returns 2 and writes nothing.
"""

import h5py
import numpy as np
import pytest
import safetensors.numpy
import torch

from command import prudent as command
from faults import tree_digest
from prudent.datasets.readers import read, read_array
from prudent.errors import DataError, PrudentError

RNG = np.random.default_rng(0)
THETA = RNG.uniform(0, 1, (40, 2)).astype(np.float32).astype(np.float64)
X = RNG.normal(size=(40, 3)).astype(np.float32).astype(np.float64)
PRIOR = 'kind = "box"\nlow = [0, 0]\nhigh = [1, 1]\nnames = ["mass", "spin"]\n'


def write_npz(path, **arrays):
    np.savez(path, **arrays)


def write_hdf5(path, **arrays):
    with h5py.File(path, "w") as file:
        for name, value in arrays.items():
            value = value.astype("S") if value.dtype.kind == "U" else value
            file[name] = value


def write_safetensors(path, **arrays):
    path.write_bytes(
        safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in arrays.items()})
    )


def write_zarr(path, **arrays):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="w")
    for name, value in arrays.items():
        group.create_array(name, data=value)


def write_zarr_2(path, **arrays):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="w", zarr_format=2)
    for name, value in arrays.items():
        group.create_array(name, data=value)


def write_folder(path, **arrays):
    path.mkdir()
    for name, value in arrays.items():
        np.save(path / f"{name}.npy", value)  # noqa: TID251


def write_tables(path, **arrays):
    path.mkdir()
    for name, value in arrays.items():
        rows = value.reshape(len(value), -1).astype(str)
        (path / f"{name}.csv").write_text("\n".join(",".join(row) for row in rows))


def write_csv(path, **arrays):
    """One table, whose columns are numbered."""
    columns = {}
    for name, value in arrays.items():
        value = value.reshape(len(value), -1)
        columns |= {f"{name}_{i + 1}": value[:, i].astype(str) for i in range(value.shape[1])}
    lengths = max(map(len, columns.values()))
    cells = [[*column, *[""] * (lengths - len(column))] for column in columns.values()]
    rows = [",".join(row) for row in zip(*cells, strict=True)]
    path.write_text("\n".join([",".join(columns), *rows]))


FORMATS = {
    "sims.npz": write_npz,
    "sims.h5": write_hdf5,
    "sims.hdf5": write_hdf5,
    "sims.safetensors": write_safetensors,
    "sims.zarr": write_zarr,
    "old.zarr": write_zarr_2,
    "folder": write_folder,
    "tables": write_tables,
    "sims.csv": write_csv,
}
TAKEN = {
    "as they are": {"theta": THETA, "x": X},
    "float32": {"theta": THETA.astype(np.float32), "x": X.astype(np.float32)},
    "Fortran order": {"theta": np.asfortranarray(THETA), "x": np.asfortranarray(X)},
    "big-endian": {"theta": THETA.astype(">f8"), "x": X.astype(">f4")},
    "other names": {"params": THETA, "data": X},
    "capitals": {"Theta": THETA, "X": X},
    "one known name": {"theta": THETA, "signal": X},
    "an array more": {"theta": THETA, "x": X, "seconds": np.zeros(40)},
}


# The format has one order; a table has no arrays but its columns.
IMPOSSIBLE = {
    ("sims.safetensors", "Fortran order"),
    ("sims.safetensors", "big-endian"),
    ("sims.csv", "one known name"),
}


@pytest.mark.parametrize(
    ("name", "case"), [(n, c) for n in FORMATS for c in TAKEN if (n, c) not in IMPOSSIBLE]
)
def test_what_is_plain_is_taken(name, case, tmp_path):
    FORMATS[name](tmp_path / name, **TAKEN[case])
    before = tree_digest(tmp_path)
    pairs = read(tmp_path / name)
    assert torch.equal(pairs.theta.double(), torch.tensor(THETA))
    assert torch.equal(pairs.x.double(), torch.tensor(X))
    assert tree_digest(tmp_path) == before


@pytest.mark.parametrize("name", FORMATS)
def test_integers_and_single_columns_are_taken(name, tmp_path):
    counts = np.arange(40)
    FORMATS[name](tmp_path / name, theta=THETA[:, 0], x=counts)
    pairs = read(tmp_path / name)
    assert pairs.theta.shape == (40, 1)
    assert pairs.x[:, 0].tolist() == counts.tolist()


@pytest.mark.parametrize(
    "name", ["sims.npz", "sims.h5", "sims.safetensors", "sims.zarr", "folder"]
)
def test_columns_are_put_side_by_side(name, tmp_path):
    columns = {"mass": THETA[:, 0], "spin": THETA[:, 1:], "signal": X, "other": X}
    FORMATS[name](tmp_path / name, **columns)
    pairs = read(tmp_path / name, theta="mass,spin", x="signal")
    assert torch.equal(pairs.theta.double(), torch.tensor(THETA))
    with pytest.raises(PrudentError, match="no `spn` in"):
        read(tmp_path / name, theta="mass,spn", x="signal")


def test_columns_of_a_table_are_found_by_the_names_of_the_prior(tmp_path):
    rows = np.column_stack([X[:, :1], THETA, X[:, 1:]]).astype(str)
    text = "\n".join(["a,mass,spin,b,c", *(",".join(row) for row in rows)])
    (tmp_path / "sims.csv").write_text(text)
    (tmp_path / "prior.toml").write_text(PRIOR)
    from prudent.experiments.inputs import from_files

    inputs, _ = from_files(str(tmp_path / "sims.csv"), prior=str(tmp_path / "prior.toml"))
    assert torch.equal(inputs.training.theta.double(), torch.tensor(THETA[:32]))
    assert torch.equal(inputs.training.x.double(), torch.tensor(X[:32]))
    pairs = read(tmp_path / "sims.csv", theta="mass,spin", x="b,c")
    assert torch.equal(pairs.x.double(), torch.tensor(X[:, 1:]))


def test_groups_are_searched_and_named(tmp_path):
    write_hdf5(tmp_path / "a.h5", **{"run/inputs/params": THETA, "run/data": X, "run/y": X})
    assert torch.equal(read(tmp_path / "a.h5").x.double(), torch.tensor(X))
    named = read(tmp_path / "a.h5", theta="run/inputs/params", x="run/y")
    assert torch.equal(named.x.double(), torch.tensor(X))
    write_hdf5(tmp_path / "b.h5", **{"a/theta": THETA, "a/x": X, "b/theta": THETA, "b/x": X})
    with pytest.raises(PrudentError, match="several could be `theta` .* a/theta a/x b/theta b/x"):
        read(tmp_path / "b.h5")
    assert len(read(tmp_path / "b.h5", theta="a/theta", x="a/x")) == 40


def test_a_group_that_holds_itself_ends(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("g")
        group["again"] = group
        group["theta"], group["x"] = THETA, X
    assert len(read(tmp_path / "a.h5")) == 40


def nan(values):
    values = values.copy()
    values[3, 0] = np.nan
    return values


DEFECTS = {
    "nothing known": ({"a": THETA, "b": X, "c": X}, "no `theta`"),
    "other lengths": ({"theta": THETA[:-1], "x": X}, "39 rows, `x` has 40"),
    "NaN in theta": ({"theta": nan(THETA), "x": X}, "rows of `theta` are not finite"),
    "all NaN": ({"theta": THETA, "x": X * np.nan}, "nothing is left"),
    "strings": ({"theta": THETA, "x": X.astype(str)}, "expected real numbers"),
    "complex": ({"theta": THETA, "x": (X * 1j).astype("complex64")}, "expected real numbers"),
    "transposed": ({"theta": THETA.T, "x": X.T}, "Are both transposed"),
    "another number of parameters": ({"theta": X, "x": X}, "has 3 parameters, the prior has 2"),
    "outside the prior": ({"theta": THETA + 5, "x": X}, "have no density under the prior"),
}
# What a format cannot hold (None), or is refused in other words.
EXCEPT = {
    ("sims.csv", "other lengths"): "rows of `theta` are not finite",
    ("sims.csv", "complex"): "is no table of numbers",
    ("tables", "complex"): "is no table of numbers",
    ("sims.csv", "transposed"): "has 40 parameters, the prior has 2",
    ("sims.csv", "strings"): None,
    ("tables", "strings"): None,
    ("sims.safetensors", "strings"): None,
    ("sims.safetensors", "complex"): "holds C",
}


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize(
    ("name", "defect"),
    [(n, d) for n in FORMATS for d in DEFECTS if EXCEPT.get((n, d), "") is not None],
)
def test_what_is_not_is_one_line_and_writes_nothing(name, defect, tmp_path):
    arrays, message = DEFECTS[defect]
    message = EXCEPT.get((name, defect), message)
    FORMATS[name](tmp_path / name, **arrays)
    (tmp_path / "prior.toml").write_text(PRIOR)
    before = tree_digest(tmp_path)
    options = ["--method", "npe", "--epochs", "1", "-q", "-o", "run"]
    result = command("train", "--data", name, "--prior", "prior.toml", *options, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    *_, last = told = result.stderr.strip().splitlines()
    assert last.startswith("Error: ")
    assert message in last
    assert len(told) == 1, told
    assert result.stdout == ""
    assert tree_digest(tmp_path) == before


@pytest.mark.parametrize("name", ["sims.npz", "sims.csv", "sims.zarr"])
def test_rows_with_nan_are_told_and_left_out(name, tmp_path, caplog):
    from prudent.experiments.inputs import from_files, pairs_to_test

    FORMATS[name](tmp_path / name, theta=THETA, x=nan(X))
    (tmp_path / "prior.toml").write_text(PRIOR)
    path = str(tmp_path / name)
    inputs, _ = from_files(path, prior=str(tmp_path / "prior.toml"))
    assert (len(inputs.training), inputs.training.num_invalid) == (31, 1)
    assert "1 of " in caplog.text
    pairs = pairs_to_test(path, None, None)
    assert (len(pairs), pairs.num_invalid) == (39, 1)  # a diagnosis tells them


@pytest.mark.parametrize(
    ("name", "role", "text", "expected"),
    [
        ("x.csv", "x", "1,2,3\n", [[1, 2, 3]]),
        ("x.csv", "x", "x,y\n1,2\n", [[1, 2]]),
        ("x.csv", "x", "x_1,x_2,seconds\n1,2,9\n", [[1, 2]]),
        ("t.csv", "theta", "theta_1,theta_2,x_1\n1,2,9\n", [[1, 2]]),
        ("x.csv", "x", '"a","b"\n1,2\n3,4\n', [[1, 2], [3, 4]]),
        ("x.csv", "x", '"a","b"\n"1","2"\n', [[1, 2]]),
        ("x.csv", "x", ",0,1\n0,3,4\n", [[3, 4]]),  # frames of pandas and R with their index
        ("x.csv", "x", '"","x.1","x.2"\n"first",3,4\n', [[3, 4]]),
        ("x.csv", "x", "a;b\n1;2\n", [[1, 2]]),
        ("x.txt", "x", "# mass  spin\n 1.5D+00   2.0d-1\n", [[1.5, 0.2]]),
        ("x.dat", "x", "# written by my code\n1\t2\n3\t4\n", [[1, 2], [3, 4]]),
        ("x.dat", "x", "# x_1 x_2 other\n1 2 3\n", [[1, 2]]),
    ],
)
def test_observations_in_tables(name, role, text, expected, tmp_path):
    (tmp_path / name).write_text(text)
    assert read_array(tmp_path / name, role).tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no numbers"),
        ("a,b\n", "holds no numbers"),
        ("a,a\n1,2\n", "two columns of one name"),
        ("a,b\n1,2,3\n", "has 3 columns below 2 names"),
        ("a,b\n1,****\n", "no table of numbers: .*string '\\*\\*\\*\\*'"),
        ("a;b\n1,5;2,5\n", "no table of numbers: .*string .1,5. to"),
        ("# nothing\n", "holds no numbers"),
    ],
)
def test_tables_that_are_none(text, message, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(PrudentError, match=message) as error:
        read_array(tmp_path / "x.csv")
    assert "\n" not in str(error.value)


def test_an_empty_cell_is_a_simulation_that_failed(tmp_path):
    (tmp_path / "sims.csv").write_text("theta,x_1,x_2\n0.1,1,2\n0.2,,3\n0.3,4,\n")
    with pytest.warns(UserWarning, match="excluded 2 of 3 simulations"):
        pairs = read(tmp_path / "sims.csv", invalid="exclude")
    assert torch.equal(pairs.x, torch.tensor([[1.0, 2.0]]))


def test_a_table_without_names_says_what_to_add(tmp_path):
    np.savetxt(tmp_path / "sims.dat", np.c_[THETA, X])
    with pytest.raises(PrudentError, match=r"no line of names above its numbers; add one, such"):
        read(tmp_path / "sims.dat")
    np.savetxt(tmp_path / "sims.dat", np.c_[THETA, X], header="theta_1 theta_2 x_1 x_2 x_3")
    assert torch.equal(read(tmp_path / "sims.dat").x, torch.tensor(X, dtype=torch.float32))


def test_netcdf_is_read_and_its_older_version_told(tmp_path):
    write_hdf5(tmp_path / "sims.nc", theta=THETA, x=X)
    assert len(read(tmp_path / "sims.nc")) == 40
    (tmp_path / "old.nc").write_bytes(b"CDF\x01" + bytes(100))
    with pytest.raises(PrudentError, match="netCDF files must be of version 4"):
        read(tmp_path / "old.nc")


@pytest.mark.parametrize("name", ["sims.npz", "sims.h5"])
def test_tables_inside_files_say_their_columns(name, tmp_path):
    table = np.zeros(40, dtype=[("mass", "f8"), ("spin", "f8")])
    FORMATS[name](tmp_path / name, theta=table, x=X)
    with pytest.raises(PrudentError, match="is a table of columns mass spin; save each as an"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["sims.npz", "sims.h5", "sims.csv", "sims.safetensors"])
def test_a_damaged_file_is_a_mistake_of_the_input(name, tmp_path):
    """The command returns 2, as for everything that a user hands over."""
    (tmp_path / name).write_bytes(b"\xffhello")
    with pytest.raises(DataError) as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)


def without_a_chunk(path):
    (path / "x" / "c" / "0" / "0").unlink()


def linked(path):
    chunk = path / "x" / "c" / "0" / "0"
    chunk.rename(path.parent / "elsewhere")
    chunk.symlink_to(path.parent / "elsewhere")


def bomb(path):
    document = path / "x" / "zarr.json"
    document.write_text(document.read_text().replace("40,", "4000000000,"))


def cut(path):
    (path / "theta" / "zarr.json").write_text("{")


def pickled(path):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("theta", data=THETA)
    group.create_array("x", data=X)
    document = path / "x" / ".zarray"
    codec = '"filters": [{"id": "pickle", "protocol": 5}]'
    document.write_text(document.read_text().replace('"filters": null', codec))
    assert "pickle" in document.read_text()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_a_chunk, "`x` in .* lacks 1 of 1 chunks"),
        (linked, "is a link to another place"),
        (bomb, "declares"),
        (cut, "damaged"),
        (pickled, "pickle"),
    ],
)
def test_hostile_groups_of_zarr_are_refused(damage, message, tmp_path):
    write_zarr(tmp_path / "a.zarr", theta=THETA, x=X)
    damage(tmp_path / "a.zarr")
    with pytest.raises(PrudentError, match=message) as error:
        read(tmp_path / "a.zarr")
    assert "\n" not in str(error.value)


def test_one_array_is_not_a_pair(tmp_path):
    write_folder(tmp_path / "folder", theta=THETA, x=X)
    with pytest.raises(PrudentError, match="holds one array, and pairs are two"):
        read(tmp_path / "folder" / "theta.npy")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PrudentError, match="is a directory without .npy"):
        read(tmp_path / "empty")
    (tmp_path / "folder" / "x.csv").write_text("1,2\n")
    with pytest.raises(PrudentError, match="of one name"):
        read(tmp_path / "folder")


def test_names_in_messages_are_on_one_line(tmp_path):
    write_hdf5(tmp_path / "odd.h5", **{"pa\nrs": THETA, "da\x1bta": X})
    with pytest.raises(DataError) as told:
        read(tmp_path / "odd.h5")
    assert "found: da?ta pa?rs." in str(told.value)


def test_a_table_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("prudent.datasets._formats.MAX_TEXT", 100)
    (tmp_path / "long.csv").write_text("theta,x\n" + "1,2\n" * 50)
    with pytest.raises(DataError, match="has more than 100 bytes of text; save it as .npz or .h5"):
        read(tmp_path / "long.csv")
