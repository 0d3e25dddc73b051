"""How far is a posterior from the exact one?

Samples with repeated points, such as those of a ratio estimator, are told apart by their
repetitions: c2st and mmd then are not 0.5 and 0 even for the exact posterior.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prudent._arrays import as_tensor
from prudent._extras import require
from prudent._randomness import derive, generator
from prudent.errors import DataError, InputError

# Points whose distances set the width of the kernel.
NUM_FOR_WIDTH = 1000


@dataclass(frozen=True)
class Distance:
    """A distance between two distributions.

    Args:
        name: The name of the distance.
        value: The estimate.
        error: The standard error of the estimate.
        p_value: The p-value of "both are equal"; NaN where there is no test.
        num_invalid: The number of rows that were not finite and left out.
    """

    name: str
    value: float
    error: float
    p_value: float
    num_invalid: int

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        text = f"{self.name} {self.value:.3g} ± {self.error:.2g}"
        text += "" if math.isnan(self.p_value) else f", p = {self.p_value:.2g}"
        return f"<{text}{f', {self.num_invalid:,} rows not finite' if self.num_invalid else ''}>"


def kl(exact_log_prob: Any, log_prob: Any) -> Distance:
    r"""Expected Kullback-Leibler divergence from the exact posterior, in nats.

    Test pairs are draws of the exact posterior, so it is the mean over them of
    :math:`\log p(\theta \mid x) - \log q(\theta \mid x)`: no sampler is needed. It is infinite
    if the estimate has no density at some truth. Rows with NaN are counted.

    Args:
        exact_log_prob: Normalised exact log-density of the truth of each test pair, (N,), from
            ``problem.log_posterior(theta, x)``.
        log_prob: That of the estimate, normalised: ``measure(estimator, pairs).log_posterior``.

    >>> kl(torch.tensor([0.0, 0.4]), torch.tensor([-0.2, 0.2]))
    <KL 0.2 ± 0>
    """
    exact = as_tensor("exact_log_prob", exact_log_prob, torch.float64)
    other = as_tensor("log_prob", log_prob, torch.float64)
    if exact.ndim != 1 or exact.shape != other.shape:
        raise DataError(
            f"expected two log-densities of shape (N,), got {tuple(exact.shape)} and "
            f"{tuple(other.shape)}."
        )
    valid = exact.isfinite() & ~other.isnan()
    if not bool(valid.any()):
        raise DataError(f"none of {len(exact):,} log-densities can be compared: all are NaN.")
    kept = (exact - other)[valid]
    mean = float(kept.mean())
    spread = float(kept.std(correction=0)) if math.isfinite(mean) else math.inf
    return Distance("KL", mean, spread / math.sqrt(len(kept)), math.nan, int((~valid).sum()))


def mmd(first: Any, second: Any, *, num_shuffles: int = 199, seed: int = 0) -> Distance:
    """Squared maximum mean discrepancy of two samples, unbiased, with a permutation test.

    The kernel is Gaussian, on parameters standardised by their pooled spread; its width is the
    median distance. Memory grows with the square of the number of points: 4,000 in all need 64 MB.

    Args:
        first: Draws (N, D).
        second: Draws (M, D).
        num_shuffles: Permutations; the p-value is at least one over this many.
        seed: The seed of the permutations.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> mmd(torch.randn(300, 2), torch.randn(300, 2) + 1).p_value
    0.005
    """
    one, two, num_invalid = _samples(first, second)
    points = torch.cat((one, two))
    # In float32: its rounding is far below the noise, and the kernel is large.
    points = ((points - points.mean(dim=0)) / points.std(dim=0).clamp_min(1e-12)).float()
    stream = generator(seed, "mmd")
    some = points[torch.randperm(len(points), generator=stream)[:NUM_FOR_WIDTH]]
    width = torch.pdist(some).median().clamp_min(1e-12)
    kernel = torch.cdist(points, points).div_(width).square_().mul_(-0.5).exp_()
    kernel.fill_diagonal_(0)
    # Which points make up the first sample: as they are, then shuffled.
    member = torch.zeros(len(points), num_shuffles + 1, dtype=kernel.dtype)
    member[: len(one), 0] = 1
    for column in range(1, num_shuffles + 1):
        member[torch.randperm(len(points), generator=stream)[: len(one)], column] = 1
    # Sums over blocks of the kernel are quadratic forms, one for each column of memberships.
    first_size, second_size, rows = len(one), len(two), kernel @ member
    inside = (member * rows).sum(dim=0)
    across = rows.sum(dim=0) - inside
    outside = kernel.sum() - inside - 2 * across
    within = inside / (first_size * (first_size - 1)) + outside / (second_size * (second_size - 1))
    seen, shuffled = (within - 2 * across / (first_size * second_size)).split((1, num_shuffles))
    p_value = (1 + int((shuffled >= seen).sum())) / (num_shuffles + 1)
    error = float(shuffled.std()) if num_shuffles > 1 else math.nan
    return Distance("MMD²", float(seen), error, p_value, num_invalid)


def c2st(first: Any, second: Any, *, num_folds: int = 5, seed: int = 0) -> Distance:
    """Accuracy of a classifier between two samples: 0.5 for equal, 1 for disjoint.

    The classifier is the mean of a logistic regression on squares and products, the best there is
    between normal distributions, and of boosted trees for the rest. On 1,000 draws it is closer
    to the best possible accuracy than the network of the usual benchmarks, so its figures are a
    little higher. The larger sample is cut to the size of the smaller.

    Args:
        first: Draws (N, D), of the exact posterior for instance.
        second: Draws (M, D).
        num_folds: Parts of the cross-validation.
        seed: The seed of folds and trees.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> float(c2st(torch.randn(200, 2), torch.randn(200, 2) + 9)) > 0.99
    True
    """
    one, two, num_invalid = _samples(first, second)
    number = min(len(one), len(two))
    if number < num_folds:
        raise InputError(f"{num_folds} folds need as many points a sample; got {number}.")
    require("sklearn", "distances", "C2ST")
    from sklearn.ensemble import HistGradientBoostingClassifier, VotingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    products = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False))
    smooth = make_pipeline(products, StandardScaler(), LogisticRegression(max_iter=1000))
    state = derive(seed, "c2st") % 2**32
    trees = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, random_state=state)
    both = VotingClassifier([("smooth", smooth), ("trees", trees)], voting="soft")
    folds = StratifiedKFold(num_folds, shuffle=True, random_state=state)
    points = torch.cat((one[:number], two[:number])).numpy()
    labels = torch.arange(2).repeat_interleave(number).numpy()
    value = float(cross_val_score(both, points, labels, cv=folds).mean())
    error = math.sqrt(max(value * (1 - value), 0.25 / number) / (2 * number))
    return Distance("C2ST", value, error, math.nan, num_invalid)


def _samples(first: Any, second: Any) -> tuple[Tensor, Tensor, int]:
    """Both in float64, the finite rows of each, and the number of the others."""
    parts, num_invalid = [], 0
    for name, value in (("first", first), ("second", second)):
        sample = as_tensor(name, value, torch.float64).detach()
        if sample.ndim != 2 or sample.shape[1] == 0:
            raise DataError(f"expected `{name}` of shape (N, D), got {tuple(sample.shape)}.")
        finite = sample.isfinite().all(dim=1)
        if int(finite.sum()) < 2:
            raise DataError(f"{int(finite.sum())} of {len(sample):,} rows of `{name}` are finite.")
        parts.append(sample[finite])
        num_invalid += int((~finite).sum())
    one, two = parts
    if one.shape[1] != two.shape[1]:
        raise DataError(
            f"expected samples with as many parameters, got {one.shape[1]} and {two.shape[1]}."
        )
    return one, two, num_invalid
