"""Slurm without a cluster: job scripts as they are, and a pretended one that runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweeping import GUARD, command, prepare, results, sweep

from command import prudent
from faults import tree_digest
from prudent.errors import InputError
from prudent.experiments.engines.slurm import Job, script
from prudent.experiments.sweep import read_sweep

pytest.importorskip("dask_jobqueue")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs sh"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

JOB = Job(
    queue="long",
    account="physics-7",
    cores=4,
    memory="8 GB",
    walltime="1-02:30:00",
    directives=("--constraint=skylake", "--exclusive"),
    prologue=("module load python/3.11",),
)
BY_HAND = """\
#!/usr/bin/env bash
#SBATCH -J prudent
#SBATCH -p long
#SBATCH -A physics-7
#SBATCH -n 1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH -t 1-02:30:00
#SBATCH --output=/scratch/runs/slurm-%j.out
#SBATCH --constraint=skylake
#SBATCH --exclusive
cd /home/me
export OMP_NUM_THREADS=1
module load python/3.11
exec prudent sweep my.toml --workers 4
"""
# Names that a shell takes for something else.
ODD = ["a 0", 'a"=0"', "a'; echo foo", "a\\=", "$HOME", "`id`", "日本", "-x", "a;b", "a|b", "a&b"]


def shell_accepts(text):
    return subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


def test_the_job_of_a_worker():
    from dask_jobqueue.slurm import SLURMJob

    made = SLURMJob("tls://10.0.0.1:8786", "worker-0", **JOB.arguments(Path("/scratch/a b")))
    text = made.job_script()
    assert BY_HAND.split("#SBATCH --output")[0].removeprefix("#!/usr/bin/env bash\n") in text
    assert "#SBATCH --output='/scratch/a b'/slurm-%j.out\n" in text
    (line,) = [line for line in text.splitlines() if "dask_worker" in line]
    assert line.startswith(f"{sys.executable} -m distributed.cli.dask_worker tls://10.0.0.1:8786")
    assert "--nthreads 1" in line
    assert "--nworkers 4" in line
    assert "--local-directory '/scratch/a b'" in line
    # It leaves five minutes before its 26.5 hours are over.
    assert "--lifetime 95100s --lifetime-stagger 120s" in line
    assert shell_accepts(text)


def test_the_job_by_hand():
    command = ["prudent", "sweep", "my.toml", "--workers", "4"]
    text = script(JOB, command, Path("/home/me"), Path("/scratch/runs"))
    assert text == BY_HAND
    assert shell_accepts(text)


@pytest.mark.parametrize("name", ODD)
def test_odd_names_stay_names(name, tmp_path):
    place = tmp_path / name
    place.mkdir()
    command = [sys.executable, "-c", "import os, sys; print(os.getcwd(), sys.argv[1])", name]
    text = script(Job(), command, place, place)
    assert shell_accepts(text)
    done = subprocess.run(["sh"], input=text, text=True, capture_output=True, check=True)
    assert done.stdout == f"{place} {name}\n"


@pytest.mark.parametrize(
    "name", ["new\ntouch broken", "a\rb", "bell\a", "\x1b[31m", "\x85", "\u2028"]
)
def test_names_that_cannot_be_printed_are_refused(name, tmp_path):
    """A comment for Slurm ends with its line, whatever quotes are around it."""
    for words, directory, logs in (
        (["prudent"], tmp_path, tmp_path / name),
        (["prudent"], tmp_path / name, tmp_path),
        (["prudent", "--set", name], tmp_path, tmp_path),
    ):
        with pytest.raises(InputError, match="a job cannot have '.*' in it; choose names"):
            script(Job(), words, directory, logs)


def test_a_line_of_a_name_is_no_command(tmp_path):
    with_slurm(tmp_path, 'queue = "long"')
    words = ("sweep", "my.toml", "-o", "runs\ntouch broken #", "--print-script")
    done = prudent(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "runs\\ntouch broken #" in done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quue": "x"}, "Did you mean `queue`?"),
        ({"queue": "a\nrm -rf"}, "slurm.queue"),
        ({"queue": "a; rm"}, "slurm.queue"),
        ({"account": "$(id)"}, "slurm.account"),
        ({"account": 7}, "slurm.account"),
        ({"memory": "lots"}, "a size such as 4 GB"),
        ({"walltime": "04:00"}, "hours:minutes:seconds"),  # four minutes, for Slurm
        ({"cores": 0}, "slurm.cores"),
        ({"cores": True}, "slurm.cores"),
        ({"directives": "--exclusive"}, "expected a list"),
        ({"directives": ["--a=b\n#SBATCH --c"]}, "slurm.directives"),
        ({"directives": ["--a=b; rm"]}, "slurm.directives"),
        ({"prologue": ["a\nb"]}, "expected a list of lines"),
    ],
)
def test_what_could_break_a_script_is_refused(tmp_path, settings, message):
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    with_slurm(tmp_path, text)
    with pytest.raises(InputError, match=message):
        read_sweep(tmp_path / "my.toml")


def with_slurm(place, text):
    prepare(place, [160])
    with (place / "my.toml").open("a") as file:
        file.write(f"[slurm]\n{text}\n")


def test_mistakes_in_the_file_change_nothing(tmp_path):
    with_slurm(tmp_path, 'queue = "a;b"')
    before = tree_digest(tmp_path)
    code, _, err = sweep(tmp_path, "--print-script")
    assert code == 2
    assert "slurm.queue: `queue` is 'a;b'; expected a name" in err
    assert tree_digest(tmp_path) == before


@pytest.mark.process
def test_a_printed_script_does_the_work(tmp_path):
    """On this machine the comments for Slurm are comments."""
    with_slurm(tmp_path, 'queue = "long"\nprologue = ["touch loaded"]')
    code, text, err = sweep(tmp_path, "--print-script", "--set", "seed=3")
    assert code == 0, err
    assert "#SBATCH -p long" in text
    assert not (tmp_path / "runs").exists()
    done = subprocess.run(
        ["bash"], input=text, text=True, cwd="/", capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 of 1 runs done" in done.stdout
    assert (tmp_path / "loaded").exists()
    (config,) = (tmp_path / "runs").glob("*/config.json")
    assert '"seed": 3' in config.read_text()


SBATCH = """#!/usr/bin/env bash
cp "$1" "$PRETENDED/job.sh"
setsid bash "$PRETENDED/job.sh" > "$PRETENDED/job.log" 2>&1 &
echo $! >> "$PRETENDED/pids"
echo "Submitted batch job $!"
"""
SCANCEL = """#!/usr/bin/env bash
kill -- "-$1"
"""


@pytest.mark.process
def test_a_pretended_slurm_gives_the_same_bytes(tmp_path):
    """Real jobs, real workers, a real scheduler with TLS; only the queue is ours."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    place, other, odd = tmp_path / "place", tmp_path / "other", tmp_path / "an odd place"
    for one in (place, other, odd):
        one.mkdir()
        with_slurm(one, 'interface = "lo"\nmemory = "2 GB"')
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PRETENDED": str(tools),
        "OMP_NUM_THREADS": "1",
    }
    arguments = {"env": environment, "capture_output": True, "text": True, "timeout": GUARD}
    words = command("my.toml", "-o", "runs", "--engine", "slurm", "--workers", "1")
    refused = subprocess.run(words, cwd=odd, check=False, **arguments)
    assert refused.returncode == 2
    assert "an output without spaces" in refused.stderr
    assert not (odd / "runs").exists()
    done = subprocess.run(words, cwd=place, check=False, **arguments)
    log = (tools / "job.log").read_text() if (tools / "job.log").exists() else ""
    assert done.returncode == 0, done.stderr + log
    assert "1 of 1 runs done" in done.stdout
    assert "tls://" in (tools / "job.sh").read_text()
    assert sweep(other, workers=1)[0] == 0
    assert results(place / "runs") == results(other / "runs")
    assert not (place / "runs" / ".work").exists()
    for pid in (tools / "pids").read_text().split():
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()
