"""From files of simulations to the posterior of an observation, all from the shell."""

import csv
import html
import json
import re
import shlex
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

import prudent
from command import prudent as command
from command import refused
from prudent import problems
from prudent.diagnostics.verdict import Verdict
from prudent.errors import StoreError
from prudent.experiments import load_runs
from prudent.experiments.store import Run, keep_diagnosis

PRIOR = 'kind = "box"\nlow = [-3, -3]\nhigh = [3, 3]\nnames = ["mass", "spin"]\n'
TINY = ["--method", "npe", "--epochs", "3", "--batch-size", "64", "-q"]
X = np.array([0.4, -0.8])


def simulated(number, seed):
    rng = np.random.default_rng(seed)
    theta = rng.uniform(-3, 3, (number, 2))
    return {"theta": theta, "x": theta + 0.5 * rng.normal(size=(number, 2))}


def ok(place, *arguments):
    result = command(*arguments, cwd=place)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Everything that a user has: simulations, test pairs, a prior, observations; and a run."""
    place = tmp_path_factory.mktemp("place")
    np.savez(place / "sims.npz", **simulated(500, 0))
    np.savez(place / "test.npz", **simulated(300, 1))
    (place / "prior.toml").write_text(PRIOR)
    ok(place, "train", "--data", "sims.npz", "--prior", "prior.toml", *TINY, "-o", "run")
    np.save(place / "x.npy", X)  # noqa: TID251
    np.save(place / "several.npy", np.stack([X, X + 1, X - 1]))  # noqa: TID251
    np.savez(place / "x.npz", x=X)
    np.savez(place / "two.npz", first=X, second=X)
    (place / "x.csv").write_text("a,b\n0.4,-0.8\n")
    (place / "column.csv").write_text("0.4\n-0.8\n")
    (place / "theta.csv").write_text("0.5,-0.7\n")
    with h5py.File(place / "x.h5", "w") as file:
        file["counts"], file["other"] = X[None], np.zeros(3)
    return place


def draws(place, name):
    with np.load(place / name, allow_pickle=False) as found:
        return dict(found)


@pytest.mark.slow
def test_from_simulations_to_an_answer(place):
    """The four commands of the guide, from a directory that holds nothing but a user's files."""
    diagnosed = ok(place, "diagnose", "run", "--data", "test.npz", "-q")
    assert "300 test pairs" in diagnosed
    told = ok(place, "sample", "run", "--observation", "x.npy", "-n", "500", "-o", "a.npz")
    assert told.startswith("Verdict: ")
    assert [line.split()[0] for line in told.splitlines() if "0." in line][-2:] == ["mass", "spin"]
    assert told.endswith("Draws: a.npz (500)\n")
    found = draws(place, "a.npz")
    assert found["theta"].shape == (500, 2)
    assert found["names"].tolist() == ["mass", "spin"]
    np.testing.assert_allclose(found["x"], X, rtol=1e-6)
    posterior = prudent.load(place / "run")(X)
    with torch.no_grad():
        again = posterior.sample(500, seed=0)
        np.testing.assert_array_equal(found["theta"], again[:, 0])
        np.testing.assert_allclose(found["log_prob"], posterior.log_prob(again)[:, 0], rtol=1e-4)
    told = ok(
        place, "plot", "run", "--observation", "x.npy", "--truth", "theta.csv", "-o", "a.svg"
    )
    assert told.startswith("Verdict: ")
    page = (place / "a.svg").read_text()
    assert all(word in page for word in ("mass", "spin", "truth", "prior", "50 %"))


@pytest.mark.slow
def test_the_last_diagnosis_is_shown_from_then_on(place):
    """By all commands and in Python, with what it is about; the run itself stays as it is."""
    pytest.importorskip("pandas")
    shutil.copytree(place / "run", place / "again")
    (place / "again" / "diagnosis.json").unlink(missing_ok=True)
    before = {path.name: path.read_bytes() for path in (place / "again").iterdir()}

    def shown():
        sampled = ok(place, "sample", "again", "--observation", "x.npy", "-o", "b.npz")
        plotted = ok(place, "plot", "again", "--observation", "x.npy", "-o", "b.svg")
        ok(place, "report", "again", "-o", "again.html")
        page, posterior = (place / "again.html").read_text(), prudent.load(place / "again")(X)
        return sampled, plotted, draws(place, "b.npz")["verdict"].item(), page, posterior.verdict

    assert all("100 test pairs" in text for text in shown())
    for number in ("300", "250"):
        told = ok(place, "diagnose", "again", "--data", "test.npz", "--num-test", number)
        for text in shown():
            assert f"{number} pairs of test.npz" in text
            assert told.partition(": ")[0] in text
            assert "100 test pairs" not in text
    files = {path.name: path.read_bytes() for path in (place / "again").iterdir()}
    assert json.loads(files.pop("diagnosis.json"))["metrics"]["num_pairs"] == 250
    assert files == before


def test_a_diagnosis_of_another_model_is_refused(place):
    shutil.copytree(place / "run", place / "other")
    ok(place, "diagnose", "other", "--data", "test.npz", "--num-test", "20", "-q")
    file = place / "other" / "diagnosis.json"
    whole = file.read_bytes()
    run = load_runs(place / "other")[0]
    assert run.metrics["num_pairs"] == 20
    file.write_bytes(whole.replace(b'"num_pairs": 20', b'"num_pairs": 90'))
    with pytest.raises(StoreError, match=r"does not match its checksum .* Delete it, or diagnose"):
        load_runs(place / "other")
    file.unlink()
    file.mkdir()  # as in a directory of others, nothing can be written there
    told = command("diagnose", "other", "--data", "test.npz", "--num-test", "20", cwd=place)
    assert told.returncode == 0
    assert "This verdict is not kept." in told.stderr
    file.rmdir()
    keep_diagnosis(replace(run, files={"model.safetensors": {"sha256": "0"}}), {})
    with pytest.raises(StoreError, match=r"is about another model\. Delete it, or diagnose"):
        load_runs(place / "other")


def test_a_report_shows_the_posterior_beside_the_verdict(place):
    pytest.importorskip("pandas")
    np.save(place / "far<i>.npy", X + 1000)  # noqa: TID251
    told = ok(place, "report", "run", "--observation", "far<i>.npy", "-o", "far.html")
    assert told.startswith("Verdict: ")
    page = (place / "far.html").read_text()
    section = page[page.index('<section id="observed"') :]
    section = section[: section.index("</section>")]
    assert "What does it say about far&lt;i&gt;.npy?" in section
    for text in ("<svg", "the observation is unlike the simulations", "on average", ">95 %</th>"):
        assert text in section
    assert all(f'<th scope="row" class="name">{name}</th>' in section for name in ("mass", "spin"))
    assert "prudent report run --observation FILE" in page
    ok(place, "report", "run", "-o", "plain.html")
    assert 'id="observed"' not in (place / "plain.html").read_text()


def test_a_report_of_any_posterior(tmp_path):
    """Names of a user are text, not tags; without a verdict the page says so."""
    pytest.importorskip("pandas")
    prior = problems.box([0.0, 0.0], [1.0, 1.0])
    estimator = prudent.adapt(
        prior=prior, sample=lambda n, x: torch.rand(n, len(x), 2), names=["<script>", "b&b"]
    )
    theta = prior.sample((200,))
    diagnosis = prudent.diagnose(estimator, theta, theta, progress=False)
    results = prudent.experiments.results_of({"mine": diagnosis})
    for verdict in (diagnosis.verdict, None):
        answer = prudent.reports.Answer(estimator(theta[0]), verdict, theta[:1])
        prudent.reports.write_report(results, tmp_path / "a.html", answer=answer)
        page = (tmp_path / "a.html").read_text()
        assert "What does it say about my observation?" in page
        assert ("not measured" in page) is (verdict is None)
        assert '<th scope="row" class="name">&lt;script&gt;</th>' in page
        assert "&lt;script&gt;" in page[page.index("<svg") : page.index("</svg>")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--row", "1"], "`--row` needs --observation"),
        (["--run", "x"], "add --figures DIRECTORY or --observation FILE"),
        (["--observation", "none.npy"], "no file none.npy"),
        (["--observation", "several.npy"], "holds 3 observations; choose one with --row"),
        (["--observation", "two.npz"], "Say which with --x NAME"),
    ],
)
def test_reports_refuse_what_is_not_one_observation(arguments, message, place):
    pytest.importorskip("pandas")
    assert message in refused("report", "run", *arguments, "-o", "never.html", cwd=place)
    assert not (place / "never.html").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["x.npz"],
        ["x.csv"],
        ["column.csv"],
        ["x.h5", "--x", "counts"],
        ["two.npz", "--x", "second"],
        ["several.npy", "--row", "0"],
    ],
)
def test_observations_of_all_formats_are_the_same(arguments, place):
    ok(place, "sample", "run", "--observation", "x.npy", "-n", "20", "-o", "expected.npz", "-q")
    ok(place, "sample", "run", "--observation", *arguments, "-n", "20", "-o", "got.npz", "-q")
    expected, got = draws(place, "expected.npz"), draws(place, "got.npz")
    np.testing.assert_array_equal(got["theta"], expected["theta"])
    ok(place, "sample", "run", "--observation", "several.npy", "--row", "1", "-n", "20", "-q")
    assert not np.array_equal(draws(place, "posterior.npz")["theta"], expected["theta"])


def test_draws_as_a_table(place):
    ok(place, "sample", "run", "--observation", "x.npy", "-n", "20", "-o", "expected.npz", "-q")
    ok(place, "sample", "run", "--observation", "x.npy", "-n", "20", "-o", "a.csv", "-q")
    with (place / "a.csv").open(newline="") as file:
        names, *rows = csv.reader(file)
    assert names == ["mass", "spin", "log_prob"]
    expected = draws(place, "expected.npz")
    np.testing.assert_allclose(np.array(rows, float)[:, :2], expected["theta"], rtol=1e-6)
    ok(place, "sample", "run", "--observation", "x.npy", "-n", "20", "--seed", "1", "-q")
    assert not np.array_equal(draws(place, "posterior.npz")["theta"], expected["theta"])


@pytest.mark.slow
def test_draws_for_arviz(place):
    arviz = pytest.importorskip("arviz", exc_type=ImportError)
    ok(place, "sample", "run", "--observation", "x.npy", "-n", "20", "-o", "expected.npz", "-q")
    ok(place, "sample", "run", "--observation", "x.npy", "-n", "20", "-o", "a.nc", "-q")
    found = arviz.from_netcdf(str(place / "a.nc"))["posterior"]["theta"]
    assert found.coords["parameter"].values.tolist() == ["mass", "spin"]
    np.testing.assert_array_equal(found.values[0], draws(place, "expected.npz")["theta"])


def test_answers_as_json(place):
    arguments = ["run", "--observation", "x.npy", "--json"]
    for name in (["sample", "-n", "20"], ["plot", "--dpi", "50"]):
        found = json.loads(ok(place, name[0], *arguments, *name[1:]))
        assert found["schema"] == f"prudent.{name[0]}/1"
        assert [row["parameter"] for row in found["summary"]] == ["mass", "spin"]
        assert isinstance(found["summary"][0]["5 %"], float)
        assert found["verdict"]


@pytest.mark.parametrize(
    ("kind", "warned"),
    [("over-confident", True), ("cannot be measured", True), ("conservative", False)],
)
def test_a_bad_verdict_is_a_warning(kind, warned, place, monkeypatch):
    found = Verdict.of(kind, "because")
    monkeypatch.setattr(Run, "verdict", property(lambda run: found))
    told = ok(place, "sample", "run", "--observation", "x.npy", "-n", "20", "-q")
    assert told.startswith(f"Verdict: {kind}: because\n")
    assert ("\nWarning: the intervals below may be too narrow" in told) == warned


def test_a_model_alone_has_no_verdict(place):
    told = ok(place, "sample", "run/model.safetensors", "--observation", "x.npy", "-n", "20", "-q")
    assert told.startswith("Verdict: not measured")
    assert "\nWarning: " in told


SAMPLE = ["sample", "run", "--observation"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "run"], "--observation"),
        (["sample", "nowhere", "--observation", "x.npy"], "does not exist"),
        (["sample", ".", "--observation", "x.npy"], "holds 1 runs; name one: run"),
        ([*SAMPLE, "nowhere.npy"], "no file nowhere.npy"),
        ([*SAMPLE, "prior.toml"], "cannot read `prior.toml`; known are .csv"),
        ([*SAMPLE, "pickle.npy"], "holds object; expected real numbers"),
        ([*SAMPLE, "text.csv"], "is no table of numbers"),
        ([*SAMPLE, "nan.npy"], "NaN or infinity"),
        ([*SAMPLE, "three.npy"], "expected an observation of shape (2,)"),
        ([*SAMPLE, "several.npy"], "holds 3 observations; choose one with --row, from 0 to 2"),
        ([*SAMPLE, "several.npy", "--row", "3"], "holds rows 0 to 2"),
        ([*SAMPLE, "several.npy", "--row", "-1"], "holds rows 0 to 2"),
        ([*SAMPLE, "two.npz"], "found: first second. Say which with --x NAME"),
        ([*SAMPLE, "two.npz", "--x", "thrid"], "no `thrid` in two.npz"),
        ([*SAMPLE, "x.npy", "-n", "0"], "`num_samples` is 0"),
        ([*SAMPLE, "x.npy", "-o", "draws.txt"], "expected a file ending in .npz .csv .nc"),
        ([*SAMPLE, "x.npy", "-o", "none/draws.npz"], "no directory none"),
        (["plot", "run", "--observation", "x.npy", "-o", "a.gif"], ".pdf .png .svg"),
        (["plot", "run", "--observation", "x.npy", "--truth", "three.npy"], "shape (2,) in three"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(arguments, message, place, tmp_path):
    for file in place.glob("*.*"):
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "run").symlink_to(place / "run")
    np.save(tmp_path / "pickle.npy", np.array([{}, {}]), allow_pickle=True)  # noqa: TID251
    np.save(tmp_path / "nan.npy", np.array([np.nan, 1.0]))  # noqa: TID251
    np.save(tmp_path / "three.npy", np.zeros(3))  # noqa: TID251
    (tmp_path / "text.csv").write_text("a,b\nc,d\n")
    assert message in refused(*arguments, cwd=tmp_path)


def test_names_of_a_problem_reach_its_runs(tmp_path):
    arguments = ["--budget", "128", "--num-test", "64", *TINY]
    ok(tmp_path, "train", "mg1", *arguments, "-o", "run")
    expected = list(problems.get("mg1").parameter_names)
    assert prudent.load(tmp_path / "run").info["parameter_names"] == expected


def test_no_name_is_a_formula(place):
    """In the header of a table that a spreadsheet may open."""
    names = 'names = ["=1+1", "@SUM(A1)"]'
    (place / "odd.toml").write_text(PRIOR.replace('names = ["mass", "spin"]', names))
    ok(place, "train", "--data", "sims.npz", "--prior", "odd.toml", *TINY, "-o", "odd")
    ok(place, "sample", "odd", "--observation", "x.npy", "-n", "5", "-o", "odd.csv")
    assert (place / "odd.csv").read_text().startswith("'=1+1,'@SUM(A1),log_prob\n")


def test_names_of_arrays_are_remembered(place):
    for name, seed in (("sims", 0), ("test", 1)):
        arrays = simulated(500, seed)
        given = {"in": arrays["theta"], "out": arrays["x"], "more": arrays["x"][:, 0]}
        np.savez(place / f"{name}_named.npz", **given)
    np.savez(place / "x_named.npz", out=X, more=X)
    named = ["--theta", "in", "--x", "out"]
    own = ["train", "--data", "sims_named.npz", "--prior", "prior.toml", *named]
    ok(place, *own, *TINY, "-o", "named")
    assert "500 test pairs" in ok(place, "diagnose", "named", "--data", "test_named.npz")
    ok(place, "sample", "named", "--observation", "x_named.npz", "-n", "5", "-o", "named.npz")
    np.testing.assert_allclose(draws(place, "named.npz")["x"], X, rtol=1e-6)
    # A file with the usual names, or one array alone, is read as before.
    assert "300 test pairs" in ok(place, "diagnose", "named", "--data", "test.npz")
    ok(place, "sample", "named", "--observation", "x.npy", "-n", "5", "-o", "named.npz")


def test_the_command_that_repeats_a_run_on_files_does(tmp_path):
    arrays = simulated(300, 0)
    np.savez(
        tmp_path / "s.npz", **{"in": arrays["theta"], "out": arrays["x"], "more": arrays["x"]}
    )
    (tmp_path / "prior.toml").write_text(PRIOR)
    named = ["train", "--data", "s.npz", "--prior", "prior.toml", "--theta", "in", "--x", "out"]
    ok(tmp_path, *named, *TINY, "-o", "run")
    ok(tmp_path, "report", "run", "-o", "page.html")
    page = html.unescape((tmp_path / "page.html").read_text())
    (line,) = re.findall(r"prudent (train .*-o again)", page)
    assert line == " ".join([*named, "--config run/config.json -o again"])
    ok(tmp_path, *shlex.split(line), "-q")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()
    assert "importing" not in command(*shlex.split(line), cwd=tmp_path).stderr
