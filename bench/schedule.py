"""How long a sweep takes on many cores: its schedule, simulated with measured durations.

A worker takes the next run when it is free, longest first, as the runner does; handing out a run
takes the one process that does it some time, which is measured here. python bench/schedule.py
[FILE ...]
"""

import heapq
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path

from prudent.experiments.attempt import Outcome
from prudent.experiments.cost import seconds
from prudent.experiments.runner import run_configs
from prudent.experiments.sweep import read_sweep
from prudent.experiments.view import duration

CORES = (1, 2, 16, 100, 1000)


class Instant:
    """An engine whose runs take no time: what is left is the runner's own."""

    capacity = 1000

    def submit(self, function, config, root):
        future = Future()
        future.set_result(Outcome("done"))
        return future

    def rows(self):
        return iter(())


def seconds_to_hand_out(configs):
    """Seconds that the runner spends on a run."""
    with tempfile.TemporaryDirectory() as root:
        start = time.perf_counter()
        run_configs(configs, Path(root), Instant(), lambda row: None)
        return (time.perf_counter() - start) / len(configs)


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
    for file in sys.argv[1:] or ("laptop.toml", "conservative.toml"):
        plan = read_sweep(root / "sweeps" / file)
        durations = [seconds(config) for config in plan.configs]
        hand_out = seconds_to_hand_out(plan.configs)
        total, longest = sum(durations), max(durations)
        name = plan.configs[durations.index(longest)]
        print(f"{file}: {len(durations):,} runs, {duration(total)} of one core in all")
        print(f"  longest: {name}, {duration(longest)}; {1000 * hand_out:.2f} ms to hand one out")
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
