"""What it costs to judge a flow of sbi: our diagnosis over sbi's own diagnostics.

CPU time in one process; `python bench/adapters.py` prints it, after a few minutes. Both sides have
their defaults, which are 1,000 draws for a pair in sbi and fewer here; `posterior_ranks` is asked
for as many, and gives the ranks of SBC and TARP from one set of them. The flow of two
parameters leaks out of its box, so that sbi draws by rejection; that of five has a normal prior,
because in a box sbi's `run_sbc` alone takes 500 s of CPU time.
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
from torch.distributions import Independent, Normal

import prudent
from prudent.diagnostics import posterior_ranks

NUM_PAIRS = 1000
PRIORS = {
    "box": lambda dim: BoxUniform(-torch.ones(dim), torch.ones(dim)),
    "normal": lambda dim: Independent(Normal(torch.zeros(dim), torch.ones(dim)), 1),
}


def trained(prior, number=1000):
    """A posterior of sbi with its default flow, and pairs to judge it by."""
    torch.manual_seed(0)
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


def diagnosing(dim, name):
    """CPU time of `diagnose`, plain and thorough, over that of run_sbc and run_tarp."""
    posterior, theta, x = trained(PRIORS[name](dim))
    estimator = prudent.adapt(posterior)

    def theirs():
        run_sbc(theta, x, posterior, show_progress_bar=False)
        run_tarp(theta, x, posterior, show_progress_bar=False)

    def ours(**how):
        return lambda: prudent.diagnose(estimator, theta, x, progress=False, **how)

    def ranks():
        posterior_ranks(estimator, theta, x, num_samples=1000, progress=False)

    ways = (theirs, ours(), ours(thorough=True), ranks)
    sbi, plain, thorough, equal = (seconds(one) for one in ways)
    flow = f"flow of sbi, {dim} parameters, {name} prior"
    title = f"sbi's run_sbc and run_tarp, CPU time of 1,000 pairs ({flow})"
    return {
        f"prudent.diagnose over {title}": plain / sbi,
        f"prudent.diagnose(thorough=True) over {title}": thorough / sbi,
        f"posterior_ranks with as many draws over {title}": equal / sbi,
    }


def adapters():
    """All numbers, by name."""
    with warnings.catch_warnings(action="ignore"):
        return {**diagnosing(2, "box"), **diagnosing(5, "normal")}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, value in adapters().items():
        print(f"{value:.2f}  {name}")
