"""The paper's experiments, kept in paper.json: a line for each run, with its coverage curve.

`paper.py run` makes the runs of `sweeps/paper.toml` whose results are not there yet, in the order
of that file; it can be killed and goes on, also on another machine. The runs themselves are in
runs/paper.
"""

import argparse

from study import SweepStudy

STUDY = SweepStudy(
    "paper",
    ("problem", "budget", "method", "target", "members", "weight", "num_samples", "seed", "run"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "collect"))
    getattr(STUDY, parser.parse_args().what)()


if __name__ == "__main__":
    main()
