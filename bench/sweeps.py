"""What a sweep costs beside its runs: workers, and the machinery around them."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMOKE = ROOT / "sweeps" / "smoke.toml"


def sweep(workers, root):
    """Seconds of a sweep from an empty directory, start of processes and imports included."""
    shutil.rmtree(root, ignore_errors=True)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "prudent", "sweep", SMOKE, "-o", root, "-q"]
        + ["--workers", str(workers)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - start


def overhead_per_run(root, seconds):
    """Seconds of a sweep on one worker that are not simulation, training or diagnosis."""
    timings = [json.loads(path.read_text())["seconds"] for path in root.glob("*/timing.json")]
    return (seconds - sum(sum(timing.values()) for timing in timings)) / len(timings)


def throughput(repeats=3):
    """The throughput of two workers over that of one, and the overhead, on smoke.toml."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "runs"
        one, two, overhead = [], [], []
        for _ in range(repeats):
            two.append(sweep(2, root))
            one.append(sweep(1, root))
            overhead.append(overhead_per_run(root, one[-1]))
        return {
            "two workers over one, throughput of smoke.toml": min(one) / min(two),
            "seconds of a run that are not its own, start of the sweep included": min(overhead),
        }


if __name__ == "__main__":
    # Alone, because two workers need both cores: a neighbour halves what they can show.
    found = throughput()
    file = Path(__file__).with_name("results.json")
    known = json.loads(file.read_text()) | {name: round(value, 4) for name, value in found.items()}
    file.write_text(json.dumps(known, indent=2) + "\n")
    for name, value in found.items():
        print(f"{value:8.2f}  {name}")
