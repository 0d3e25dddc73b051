"""How long a sweep takes on many cores: its schedule, simulated with measured durations.

A worker takes the next run when it is free, longest first, as the runner does; handing out a run
takes the one process that does it some time, which is measured here. python bench/schedule.py
[FILE ...]
"""

import heapq
import os
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from unittest import mock

from prudent._progress import duration
from prudent.experiments import _runner
from prudent.experiments.config import RunConfig
from prudent.experiments.cost import seconds
from prudent.experiments.engines import open_engine
from prudent.experiments.sweep import read_sweep

CORES = (1, 2, 16, 100, 1000)


class Pretended:
    """A thousand workers, of which one finishes whenever the runner looks."""

    capacity = 1000

    def __init__(self):
        self.open = deque()

    def submit(self, function, config, root, num_simulations):
        self.open.append(Future())
        return self.open[-1]

    def rows(self):
        if self.open:
            self.open.popleft().set_result(_runner.Outcome("done"))
        return iter(())


def seconds_to_hand_out(number=3000):
    """Seconds that the runner spends on a run when a thousand are at work."""
    configs = [RunConfig("slcp", "nre", 1024, seed) for seed in range(number)]
    with tempfile.TemporaryDirectory() as root, mock.patch.object(_runner, "POLL_SECONDS", 0.0):
        start = time.perf_counter()
        _runner.Runner(configs, Path(root), Pretended(), lambda row: None).run()
        return (time.perf_counter() - start) / number


def seconds_per_dask_call(number=1000):
    """Seconds that an empty call takes on two Dask workers of this machine."""
    with tempfile.TemporaryDirectory() as scratch, open_engine("dask", 2, Path(scratch)) as engine:
        engine.submit(os.getpid).result()
        start = time.perf_counter()
        for future in [engine.submit(os.getpid) for _ in range(number)]:
            future.result()
        return (time.perf_counter() - start) / number


def makespan(durations, cores, hand_out):
    """Seconds until the last of the runs is finished."""
    free = [0.0] * min(cores, len(durations))
    clock = 0.0
    for duration_ in sorted(durations, reverse=True):
        clock = max(clock, heapq.heappop(free)) + hand_out
        heapq.heappush(free, clock + duration_)
    return max(free)


def main():
    root = Path(__file__).parents[1]
    hand_out = seconds_to_hand_out()
    print(f"handing out a run takes {1000 * hand_out:.1f} ms with 1,000 at work")
    print(f"an empty call on Dask takes {1000 * seconds_per_dask_call():.1f} ms")
    for file in sys.argv[1:] or ("laptop.toml", "conservative.toml"):
        plan = read_sweep(root / "sweeps" / file)
        durations = [seconds(config) for config in plan.configs]
        total, longest = sum(durations), max(durations)
        name = plan.configs[durations.index(longest)]
        print(f"{file}: {len(durations):,} runs, {duration(total)} of one core in all")
        print(f"  longest: {name}, {duration(longest)}")
        for cores in CORES:
            wall = makespan(durations, cores, hand_out)
            print(f"  {cores:>5} cores: {duration(wall):>12}, {total / wall / cores:4.0%} busy")
        by_problem = {}
        for config, value in zip(plan.configs, durations, strict=True):
            by_problem[config.problem] = by_problem.get(config.problem, 0.0) + value
        for problem, value in sorted(by_problem.items(), key=lambda item: -item[1]):
            print(f"  {problem:<22}{value / 3600:>12,.1f} core hours, {value / total:4.0%}")


if __name__ == "__main__":
    main()
