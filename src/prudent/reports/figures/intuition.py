"""The appendix figure of the paper: what coverage means, in one dimension."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from prudent import _plots as plots

Array = NDArray[np.float64]
SHARES = (0.7, 0.3)
# The paper says that the modes are the same, not where they are.
MODES = (-1.5, 1.5)


@dataclass(frozen=True)
class Mixture:
    """Two Gaussians with the paper's shares, and with these standard deviations."""

    deviations: tuple[float, float]

    def density(self, points: Array) -> Array:
        """The density at some points."""
        scaled = (points[:, None] - MODES) / self.deviations
        heights = np.exp(-0.5 * scaled**2) / (np.asarray(self.deviations) * np.sqrt(2 * np.pi))
        return np.asarray((heights * SHARES).sum(axis=1))

    def draw(self, number: int, seed: int) -> Array:
        """Draws from the mixture, (number,)."""
        rng = np.random.default_rng(seed)
        part = (rng.random(number) > SHARES[0]).astype(int)
        noise = rng.standard_normal(number)
        values: Array = np.asarray(MODES)[part] + np.asarray(self.deviations)[part] * noise
        return values


def intuition(
    *, level: float = 0.9, num_samples: int = 1000, seed: int = 0, ax: Axes | None = None
) -> Figure:
    """A posterior that is too narrow, its credible region, and how many truths that holds."""
    truth, narrow = Mixture((0.9, 0.4)), Mixture((0.7, 0.2))
    points = np.linspace(-6, 4.5, 20_001)
    height = mass_level(narrow.density(points), level)
    inside = (narrow.density(points) >= height).tolist()
    draws = truth.draw(num_samples, seed)
    covered = float((narrow.density(draws) >= height).mean())
    error = float(np.sqrt(covered * (1 - covered) / num_samples))
    figure, axis = plots.one_axis(ax)
    style: Any = {"color": plots.BLUE, "alpha": 0.25, "linewidth": 0}
    region = f"{100 * level:g} % region"
    axis.fill_between(points, narrow.density(points), where=inside, label=f"its {region}", **style)
    axis.plot(points, truth.density(points), color="black", label="true distribution")
    axis.plot(points, narrow.density(points), color=plots.RED, ls="--", label="approximation")
    axis.plot(draws, np.full_like(draws, -0.02), "|", color="black", alpha=0.3, markersize=5)
    axis.set(xlabel="parameter", ylabel="density", ylim=(-0.05, None), xlim=(-5, 3.5))
    text = (
        f"The {region} holds {100 * covered:.0f} ± {100 * error:.0f} % of {num_samples:,} draws "
        f"from the truth: {'cautious' if covered >= level else 'over-confident'}"
    )
    handles, _ = axis.get_legend_handles_labels()
    title = "What coverage means" if ax is None else text
    return plots.dress(figure, title, [text], handles, ax=ax)


def mass_level(density: Array, mass: float) -> float:
    """The height above which a share of the mass lies.

    >>> points = np.linspace(-8, 8, 100_001)
    >>> normal = np.exp(-0.5 * points**2)
    >>> round(float(points[normal >= mass_level(normal, 0.95)].max()), 2)
    1.96
    """
    ordered = np.sort(density)[::-1]
    return float(ordered[np.searchsorted(np.cumsum(ordered) / ordered.sum(), mass)])
