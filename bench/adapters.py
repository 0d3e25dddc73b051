"""What it costs to judge a flow of sbi: our diagnosis over sbi's own diagnostics.

CPU time in one process, in turn, the least of some repeats; `python bench/adapters.py` prints it.
"""

import contextlib
import io
import time
import warnings
from unittest.mock import Mock

import torch
from sbi.diagnostics import run_sbc, run_tarp
from sbi.inference import NPE
from sbi.utils import BoxUniform

import prudent

NUM_PAIRS, REPEATS = 1000, 1


def trained(dim, number=1000):
    """A posterior of sbi with its default flow, and pairs to judge it by."""
    torch.manual_seed(0)
    prior = BoxUniform(-torch.ones(dim), torch.ones(dim))
    theta = prior.sample((number + NUM_PAIRS,))
    x = theta + 0.3 * torch.randn_like(theta)
    # Without a tracker of ours it would leave its logs in the working directory.
    trainer = NPE(prior, tracker=Mock(), show_progress_bars=False)
    trainer.append_simulations(theta[:number], x[:number]).train(max_num_epochs=30)
    return trainer.build_posterior(), theta[number:], x[number:]


def seconds(function):
    start = time.process_time()
    with contextlib.redirect_stderr(io.StringIO()):
        function()
    return time.process_time() - start


def diagnosing(dim):
    """CPU time of `diagnose`, plain and thorough, over that of run_sbc and run_tarp."""
    posterior, theta, x = trained(dim)
    estimator = prudent.adapt(posterior)

    def theirs():
        run_sbc(theta, x, posterior, show_progress_bar=False)
        run_tarp(theta, x, posterior, show_progress_bar=False)

    def ours(**how):
        return lambda: prudent.diagnose(estimator, theta, x, progress=False, **how)

    times = [
        [seconds(one) for one in (theirs, ours(), ours(thorough=True))] for _ in range(REPEATS)
    ]
    sbi, plain, thorough = (min(column) for column in zip(*times, strict=True))
    title = f"sbi's run_sbc and run_tarp, CPU time of 1,000 pairs (flow of sbi, {dim} parameters)"
    return {
        f"prudent.diagnose over {title}": plain / sbi,
        f"prudent.diagnose(thorough=True) over {title}": thorough / sbi,
    }


def adapters():
    """All numbers, by name."""
    with warnings.catch_warnings(action="ignore"):
        return {**diagnosing(2), **diagnosing(5)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, value in adapters().items():
        print(f"{value:.2f}  {name}")
