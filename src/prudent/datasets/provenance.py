r"""Whether pairs are what they say: theta drawn from the prior, each row new, none trained on.

If theta follows the prior, it and draws of the prior are one sample, of which any N rows are as
likely to be theta. If the sample has a share p of some kind, N rows have a share s or one farther
from p with a probability of at most :math:`2 \exp(-N [s \log (s / p) + (1 - s) \log ((1 - s) /
(1 - p))])` (Hoeffding, 1963), whatever the prior, also where numbers repeat. The kinds: a
parameter is at most some quantile; two are on the same side of their medians, of which a rank
correlation makes more or less.
"""

import hashlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prudent._randomness import generator, seeded
from prudent.contracts import Prior
from prudent.datasets.pairs import Pairs, finite
from prudent.datasets.streaming import Data
from prudent.errors import DataError, InputError
from prudent.priors.checks import dtype_for
from prudent.priors.density import log_density

# The probability of a false alarm, of all parameters together.
RARE = 1e-6
# Theta that are looked at, draws of the prior, and quantiles.
MOST_THETA, NUM_DRAWS, NUM_CUTS = 2**12, 2**15, 63
# The training rows that an estimator remembers, to recognize them among test pairs.
REMEMBERED = 4096


def strays(data: Data, prior: Prior, names: Sequence[str] | None = None) -> str:
    """A warning about theta that differ from draws of the prior beyond chance, or nothing.

    That is the theta of all simulations: those that failed may be of a kind.
    """
    theta = data.sample().theta if data.pool is None else data.pool
    order = torch.randperm(len(theta), generator=generator(0, "strays"))
    theta = theta[order[:MOST_THETA]].double()
    with seeded(0, "prior"):
        draws = prior.sample((NUM_DRAWS,)).cpu().double()
    cuts = torch.cat([theta, draws]).sort(dim=0).values
    cuts = cuts[torch.arange(1, NUM_CUTS + 1) * len(cuts) // (NUM_CUTS + 1)]
    s, known = (_shares(values, cuts) for values in (theta, draws))
    p = (len(theta) * s + len(draws) * known) / (len(theta) + len(draws))
    xlogy = torch.xlogy
    distance = xlogy(s, s) - xlogy(s, p) + xlogy(1 - s, 1 - s) - xlogy(1 - s, 1 - p)
    # Theta that repeat count once.
    if len(theta.unique(dim=0)) * distance.max() < math.log(2 * distance.numel() / RARE):
        return ""
    row, column = divmod(int(distance.argmax()), theta.shape[1])
    names = names or [f"theta_{index + 1}" for index in range(theta.shape[1])]
    if row < NUM_CUTS:
        kind = f"{names[column]} are at most {float(cuts[row, column]):.3g}"
    else:
        kind = f"{names[row - NUM_CUTS]} and {names[column]} are on one side of their medians"
    here, there = (f"{100 * float(share[row, column]):.0f} %" for share in (s, known))
    told = f"theta does not follow the prior ({here} of {kind}, where the prior has {there})"
    warnings.warn(f"{told}. Is it the prior that theta was drawn from?", stacklevel=4)
    return told


def _shares(values: Tensor, cuts: Tensor) -> Tensor:
    """The share of rows (N, D) below each of K cuts, then of each two parameters, (K + D, D)."""
    below = torch.stack([(values <= cut).double().mean(dim=0) for cut in cuts])
    side = (values > cuts[NUM_CUTS // 2]).double() * 2 - 1
    return torch.cat([below, (1 + side.T @ side / len(side)) / 2])


def distinct(data: Data) -> Data:
    """The data with the first of rows that repeat, of which a warning says the number.

    Where theta comes with several x, numbers of few values may repeat by chance, and all stay.
    """
    pairs = data.sample()
    kept = np.sort(np.unique(_hashes(pairs), return_index=True)[1])
    number = len(pairs) - len(kept)
    if number == 0 or len(pairs.theta.unique(dim=0)) < 0.99 * len(kept):
        return data
    told = f"{number:,} of {len(pairs):,} pairs repeat others"
    if not isinstance(data, Pairs):
        raise DataError(f"{told}, of those looked at in {data.rows.path}; keep one of each.")
    warnings.warn(f"{told} and are left out: they are no new simulations.", stacklevel=4)
    pool = None if pairs.pool is None else pairs.pool.unique(dim=0)
    return replace(pairs[torch.from_numpy(kept)], pool=pool)


def remembered(data: Data) -> Tensor:
    """Hashes of training rows, evenly from all of them."""
    step = -(-(len(data) + data.num_invalid) // REMEMBERED)
    found = [_hashes(part[part.row_numbers % step == 0]) for part in data.parts()]
    return torch.from_numpy(np.concatenate(found)[:REMEMBERED])


def refuse_seen(known: Tensor, pairs: Pairs) -> None:
    """Refuse pairs whose hashes are known: coverage on those says nothing."""
    found = int(np.isin(_hashes(pairs), known.numpy()).sum())
    # Numbers of few values repeat by chance, among the training rows as well.
    counts = known.unique(return_counts=True)[1]
    repeats = int((counts * (counts - 1)).sum()) / max(1, len(known) - 1)
    if found > 2 * repeats * len(pairs):
        raise InputError(
            f"{found:,} of {len(pairs):,} test pairs are among the training pairs, so that "
            "coverage on them would say nothing. Use other pairs, such as those of another seed."
        )


def _hashes(pairs: Pairs) -> NDArray[np.int64]:
    rows = torch.cat([pairs.theta, pairs.x.flatten(1)], dim=1).contiguous().numpy()
    found = b"".join(hashlib.sha256(row.tobytes()).digest()[:8] for row in rows)
    return np.frombuffer(found, "<i8")


def refuse_outside(data: Data, prior: Prior) -> None:
    """Refuse theta where the prior has no density."""
    number, first = 0, ""
    for part in data.parts():
        outside = (log_density(prior, part.theta) == -torch.inf).nonzero()[:, 0]
        if len(outside) and not number:
            row = int(outside[0])
            first = f"row {int(part.row_numbers[row])}: {part.theta[row].tolist()}"
        number += len(outside)
    if number:
        raise DataError(
            f"{number:,} of {len(data):,} rows of `theta` have no density under the prior; the "
            f"first is {first}. Is it the prior that theta was drawn from?"
        )


def checked(data: Data, prior: Prior, names: Sequence[str] | None) -> tuple[Data, str]:
    """The data without repeats, and how theta strays from the prior."""
    refuse_outside(data, prior)
    data = distinct(data)
    return data, strays(data, prior, names)


def to_judge(estimator: Any, theta: Any, x: Any) -> tuple[Pairs, str]:
    """The finite pairs that can judge an estimator, and how their theta strays from its prior."""
    pairs = finite(theta, x, dtype_for(estimator))
    model = estimator
    while not hasattr(model, "trained_on") and hasattr(model, "inner"):
        model = model.inner
    if (known := getattr(model, "trained_on", None)) is not None:
        refuse_seen(known, pairs)
    names = getattr(estimator, "info", {}).get("parameter_names")
    return checked(pairs, estimator.prior, names)  # type: ignore[return-value]
