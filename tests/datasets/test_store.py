"""A store of simulations: what counts as done, what is refused, what survives."""

import errno
import json
import os
import shutil

import numpy as np
import pytest
import torch

from faults import fault_points, mutations, tree_digest
from prudent import problems
from prudent.datasets._layout import REASONS
from prudent.datasets.simulate import draw_pairs, simulate
from prudent.datasets.store import Store
from prudent.errors import DataError, InputError, PrudentError, StoreError
from prudent.problems import box, custom

GAUSSIAN = problems.get("gaussian")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Three chunks of 8, 8 and 4 rows."""
    return simulate(GAUSSIAN, 20, tmp_path_factory.mktemp("s") / "s", chunk_size=8, progress=False)


@pytest.fixture
def store(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "s")
    return Store.open(tmp_path / "s")


def chunk_of(rows=8, seed=0):
    theta, x = GAUSSIAN.draw(rows, seed)
    return theta, x, torch.zeros(rows, dtype=torch.uint8)


def test_rows_come_back_and_any_zarr_reader_sees_the_same(store):
    zarr = pytest.importorskip("zarr")
    theta, x, reason = store.read(5, 19)
    assert theta.shape == x.shape == (14, 2)
    assert reason.tolist() == [0] * 14
    expected = GAUSSIAN.draw(8, 0, "chunk 1")
    assert torch.equal(theta[3:11], expected[0])
    assert torch.equal(x[3:11], expected[1])
    group = zarr.open_group(store.path, mode="r")
    assert np.array_equal(group["x"][5:19], x.numpy())
    assert group["theta"].fill_value != group["theta"].fill_value
    assert group["reason"].fill_value == 255
    assert group.attrs["problem"] == "gaussian"
    assert group["x"].chunks == (8, 2)
    assert repr(store).endswith("20 of `gaussian`, seed 0, 3 of 3 chunks done>")


def test_plain_zarr_and_xarray_open_it_without_us(tmp_path):
    zarr, xarray = pytest.importorskip("zarr"), pytest.importorskip("xarray")
    problem = problems.get("spatial_sir")
    store = simulate(problem, 4, tmp_path / "s", chunk_size=2, progress=False)
    theta, x, _ = store.read(0, 4)
    group = zarr.open_group(store.path, mode="r")
    assert np.array_equal(group["x"][...], x.numpy())
    assert sorted(dict(group.members())) == ["reason", "theta", "x"]
    with xarray.open_zarr(store.path) as data:
        assert np.array_equal(data["theta"], theta.numpy())
        assert np.array_equal(data["x"].isel(simulation=slice(1, 3)), x[1:3].numpy())
        assert data["theta"].dims == ("simulation", "parameter")
        assert data.sizes["simulation"] == 4
        assert data["x"].dims == ("simulation", *(f"x_{i}" for i in range(x.ndim - 1)))
        assert data.attrs["problem"] == "spatial_sir"


@pytest.mark.parametrize("other", [2, None])
def test_a_store_of_another_format_is_refused(finished, tmp_path, other):
    shutil.copytree(finished.path, tmp_path / "s")
    file = tmp_path / "s" / "zarr.json"
    group = json.loads(file.read_text())
    group["attributes"]["format"] = other
    file.write_text(json.dumps(group))
    with pytest.raises(StoreError, match=f"has format {other}, .* this version reads format 1"):
        Store.open(tmp_path / "s")


def test_an_unwritten_chunk_is_refused_not_filled(tmp_path):
    store = Store.create(tmp_path / "s", GAUSSIAN, 20, 0, 8)
    assert store.missing() == [0, 1, 2]
    store.write(1, *chunk_of())
    assert store.missing() == [0, 2]
    store.read(8, 16)
    for call in (lambda: store.read(0, 9), store.pairs, store.verify, store.num_invalid):
        with pytest.raises(StoreError, match="chunk 0 is missing; run the same simulate command"):
            call()


def test_a_chunk_of_fill_values_is_stored(tmp_path):
    store = Store.create(tmp_path / "s", GAUSSIAN, 8, 0, 8)
    nothing = torch.full((8, 2), torch.nan)
    store.write(0, nothing, nothing, torch.ones(8, dtype=torch.uint8))
    assert store.missing() == []
    assert store.num_invalid() == {"nan": 8, "infinite": 0, "raised": 0, "malformed": 0}


def test_the_record_comes_last(tmp_path, monkeypatch):
    from prudent.datasets import store as module

    store = Store.create(tmp_path / "s", GAUSSIAN, 8, 0, 8)
    names = []
    original = module.write_atomic
    monkeypatch.setattr(
        module, "write_atomic", lambda path, data: (names.append(path.name), original(path, data))
    )
    store.write(0, *chunk_of())
    assert names == ["c.0.0", "c.0.0", "c.0", "0.json"]


def test_wrong_shapes_are_not_written(tmp_path):
    store = Store.create(tmp_path / "s", GAUSSIAN, 8, 0, 8)
    before = tree_digest(store.path)
    theta, x, reason = chunk_of()
    with pytest.raises(DataError, match=r"expected `x` of shape \(8, 2\), got \(8, 1\)"):
        store.write(0, theta, x[:, :1], reason)
    with pytest.raises(InputError, match="no chunk 1"):
        store.write(1, theta, x, reason)
    assert tree_digest(store.path) == before


def test_every_damage_to_every_file_is_found(tmp_path):
    store = simulate(GAUSSIAN, 12, tmp_path / "s", chunk_size=8, progress=False)
    before = tree_digest(store.path)
    files = [path for path in sorted(store.path.rglob("*")) if path.is_file()]
    assert len(files) == 4 + 2 * 4
    tried = 0
    for file in files:
        whole = file.read_bytes()
        for damaged in mutations(whole, flips=45):
            if damaged == whole.rstrip(b"\n"):  # the same JSON, without its last newline
                continue
            file.write_bytes(damaged)
            with pytest.raises(StoreError) as error:
                Store.open(store.path).verify()
            assert "\n" not in str(error.value)
            tried += 1
        file.unlink()
        with pytest.raises(StoreError, match=r"missing|not a store"):
            Store.open(store.path).verify()
        file.write_bytes(whole)
    assert tried > 600
    assert tree_digest(store.path) == before
    Store.open(store.path).verify()


@pytest.mark.parametrize("name", ["theta/c.1.0", "x/c.1.0", "reason/c.1", "done/1.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_simulate_redoes_exactly_the_damaged_chunk(store, name, damage):
    before = tree_digest(store.path)
    for path in store.path.glob("done/*"):
        os.utime(path, (0, 0))
    file = store.path / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    if damage == "delete":
        file.unlink()
    else:
        file.write_bytes(bytes(data) if damage == "flip" else bytes(data[:-1]))
    assert Store.open(store.path).missing() == [1]
    simulate(GAUSSIAN, 20, store.path, chunk_size=8, progress=False)
    assert tree_digest(store.path) == before
    redone = {path.name for path in store.path.glob("done/*") if path.stat().st_mtime_ns != 0}
    assert redone == {"1.json"}


def test_swapped_files_are_found(store, tmp_path):
    other = simulate(GAUSSIAN, 20, tmp_path / "other", seed=1, chunk_size=8, progress=False)
    for name in ("theta/c.{}.0", "x/c.{}.0", "reason/c.{}", "done/{}.json"):
        shutil.copy(other.path / name.format(0), store.path / name.format(0))
    assert store.missing() == [0], "a chunk of another store, with its record"
    for name in ("theta/c.{}.0", "x/c.{}.0", "reason/c.{}", "done/{}.json"):
        shutil.copy(store.path / name.format(1), store.path / name.format(0))
    assert store.missing() == [0], "a chunk of another place, with its record"


def test_links_lead_neither_reads_nor_writes_out_of_the_store(store, tmp_path):
    before = tree_digest(store.path)
    outside = tmp_path / "outside"
    for name in ("x/c.1.0", "done/1.json"):
        shutil.copy(store.path / name, outside)
        (store.path / name).unlink()
        (store.path / name).symlink_to(outside)
        with pytest.raises(StoreError, match="chunk 1 is a link to another place"):
            store.verify()
        outside.write_text("precious")
        simulate(GAUSSIAN, 20, store.path, chunk_size=8, progress=False)
        assert tree_digest(store.path) == before
        assert outside.read_text() == "precious"
    (store.path / "done").rename(tmp_path / "done")
    (store.path / "done").symlink_to(tmp_path / "done")
    with pytest.raises(StoreError, match="done is a link to another place"):
        Store.open(store.path)


def edit(store, name, change):
    document = json.loads((store.path / name).read_text())
    change(document)
    (store.path / name).write_text(json.dumps(document))


def forge(document, **values):
    from prudent._files import canonical_json, sha256

    attributes = document["attributes"]
    attributes.update(values)
    rest = {key: value for key, value in attributes.items() if key != "sha256"}
    attributes["sha256"] = sha256(canonical_json(rest))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "zarr.json",
            lambda d: forge(d, format=3, prudent="2.3"),
            "format 3, written by prudent 2.3",
        ),
        ("zarr.json", lambda d: d["attributes"].update(kind="other"), "not one of simulations"),
        ("zarr.json", lambda d: d["attributes"].update(seed=5), "zarr.json was edited"),
        ("zarr.json", lambda d: d.update(node_type="array"), "zarr.json was edited"),
        ("zarr.json", lambda d: forge(d, num_simulations=10**15), "theta/zarr.json was edited"),
        ("zarr.json", lambda d: forge(d, chunk_size=0), "zarr.json was edited"),
        ("zarr.json", lambda d: forge(d, chunk_size="8"), "zarr.json was edited"),
        ("zarr.json", lambda d: forge(d, x_shape=[10**12]), "zarr.json was edited"),
        ("zarr.json", lambda d: forge(d, x_shape=None), "zarr.json was edited"),
        ("theta/zarr.json", lambda d: d.update(shape=[20, 3]), "theta/zarr.json was edited"),
        ("x/zarr.json", lambda d: d.update(data_type="float64"), "x/zarr.json was edited"),
        ("x/zarr.json", lambda d: d["codecs"].pop(), "x/zarr.json was edited"),
        ("x/zarr.json", lambda d: d.update(fill_value=0.0), "x/zarr.json was edited"),
    ],
)
def test_edited_metadata_are_refused_and_left_alone(store, name, change, message):
    edit(store, name, change)
    before = tree_digest(store.path.parent)
    with pytest.raises(StoreError, match=message):
        Store.open(store.path)
    with pytest.raises(StoreError, match=message):
        simulate(GAUSSIAN, 20, store.path, chunk_size=8, progress=False)
    assert tree_digest(store.path.parent) == before


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, "NaN", '{"attributes": {"format": NaN}}']
)
def test_a_group_that_is_not_json_is_refused(store, text):
    (store.path / "zarr.json").write_text(text)
    with pytest.raises(StoreError):
        Store.open(store.path)


@pytest.mark.parametrize(
    "values",
    [{"chunk_size": 0}, {"chunk_size": -8}, {"num_simulations": 0}, {"x_shape": [2**31]}],
)
def test_a_forged_store_with_absurd_numbers_is_refused(store, values):
    group = json.loads((store.path / "zarr.json").read_text())
    forge(group, **values)
    (store.path / "zarr.json").write_text(json.dumps(group))
    numbers = group["attributes"]
    for name in ("theta", "x", "reason"):  # as consistent as a forger can make them
        document = json.loads((store.path / name / "zarr.json").read_text())
        inner = {"x": numbers["x_shape"], "theta": [2], "reason": []}[name]
        document["shape"] = [numbers["num_simulations"], *inner]
        document["chunk_grid"]["configuration"]["chunk_shape"] = [numbers["chunk_size"], *inner]
        (store.path / name / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(StoreError, match="zarr.json was edited"):
        Store.open(store.path)


def test_a_store_is_made_only_where_nothing_else_is(tmp_path, store):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    before = tree_digest(tmp_path)
    for path in (tmp_path / "file", tmp_path / "full", store.path):
        with pytest.raises(PrudentError):
            Store.create(path, GAUSSIAN, 8, 0, 8)
    assert tree_digest(tmp_path) == before
    with pytest.raises(StoreError, match="does not exist. Make one with"):
        Store.open(tmp_path / "none")
    for numbers in ((0, 0, 8), (8, -1, 8), (8, 0, 0), (2.0, 0, 8), (True, 0, 8)):
        with pytest.raises(InputError, match="expected a whole number"):
            Store.create(tmp_path / "new", GAUSSIAN, *numbers)
    assert tree_digest(tmp_path) == before


@pytest.mark.parametrize("fault", [None, errno.ENOSPC])
def test_a_fault_at_any_write_event_leaves_a_chunk_absent_or_whole(tmp_path, fault):
    path, log = tmp_path / "s", tmp_path / "log"
    whole = Store.create(tmp_path / "whole", GAUSSIAN, 16, 0, 8)
    for index in (0, 1):
        whole.write(index, *chunk_of(seed=index))
    undisturbed = tree_digest(whole.path)

    def prepare():
        shutil.rmtree(path, ignore_errors=True)
        Store.create(path, GAUSSIAN, 16, 0, 8).write(0, *chunk_of(seed=0))

    points = 0
    for _, code in fault_points(
        prepare, lambda: Store.open(path).write(1, *chunk_of(seed=1)), log, fault
    ):
        points += 1
        store = Store.open(path)
        if store.missing():
            assert store.missing() == [1]
            assert code != 0
        if fault is not None and code != 0:
            assert log.read_text().startswith("StoreError: could not write")
            assert "\n" not in log.read_text()
        store.write(1, *chunk_of(seed=1))
        assert undisturbed.items() <= tree_digest(path).items()
    # Four files, each opened (two events), renamed, and its temporary name removed.
    assert points == 16


@pytest.mark.parametrize("fault", [None, errno.ENOSPC])
def test_a_fault_while_a_store_is_made_can_be_repeated(tmp_path, fault):
    path, log = tmp_path / "s", tmp_path / "log"
    simulate(GAUSSIAN, 8, tmp_path / "whole", chunk_size=8, progress=False)

    def prepare():
        shutil.rmtree(path, ignore_errors=True)

    def action():
        simulate(GAUSSIAN, 8, path, chunk_size=8, progress=False)

    points = 0
    for _, code in fault_points(prepare, action, log, fault):
        points += 1
        if fault is not None and code != 0:
            assert log.read_text().startswith("StoreError: could not ")
        action()
        assert tree_digest(path) == tree_digest(tmp_path / "whole")
    assert points >= 25


def test_pairs_are_the_valid_rows_and_theta_is_all_of_them(tmp_path):
    store = Store.create(tmp_path / "s", GAUSSIAN, 16, 0, 8)
    for index in (0, 1):
        theta, x, reason = chunk_of(seed=index)
        x[2], reason[2] = torch.nan, REASONS.index("nan")
        store.write(index, theta, x, reason)
    everything = store.read(0, 16)
    pairs = store.pairs()
    assert len(pairs) == 14
    assert torch.equal(pairs.pool, everything[0])
    assert torch.equal(pairs.x, everything[1][everything[2] == 0])
    few = store.pairs(11)
    assert (len(few), len(few.pool)) == (9, 11)
    for budget in (0, 17):
        with pytest.raises(InputError, match=f"rows 0 to {budget} do not exist; there are 16"):
            store.pairs(budget)


def test_without_zarr_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "zarr", None)
    with pytest.raises(InputError, match=r'need zarr\. .* -e "\.\[zarr\]"'):
        simulate("gaussian", 8, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_theta_keep_the_type_of_the_prior(tmp_path):
    """A prior on 1e8 ± 1 gave one distinct theta; stores of float32 have the bytes they had."""

    def center(theta):
        return (theta - 1e8).float()

    ends = np.array([1e8 - 1]), np.array([1e8 + 1])
    far = custom(center, box(*ends), name="far")
    store = simulate(far, 600, tmp_path / "far.zarr", progress=False)
    pairs = Store.open(store.path).pairs()
    assert pairs.theta.dtype == torch.float64
    assert len(pairs.theta.unique()) == 600
    assert torch.equal(pairs.x, center(pairs.theta))
    assert torch.equal(draw_pairs(far, 600, 0).theta, pairs.theta)
    plain = simulate("gaussian", 256, tmp_path / "plain.zarr", progress=False)
    assert "theta_dtype" not in plain.attributes
    single = custom(lambda theta: theta, box([-1.0], [1.0]), name="far")
    with pytest.raises(InputError, match="theta_dtype float64, not None"):
        simulate(single, 600, store.path, chunk_size=store.chunk_size, progress=False)
