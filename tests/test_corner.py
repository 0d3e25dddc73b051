"""The pair plot: what it draws is what its caption says."""

import numpy as np
import pytest
import torch
from matplotlib.path import Path

from prudent import _corner as corners
from prudent import problems

FREE = np.tile([-np.inf, np.inf], (2, 1))
BOX = np.array([[-1.0, 1.0], [-1.0, 1.0]])


def two_moons(number, seed):
    """Exact draws, by rejection."""
    problem, generator = problems.get("two_moons"), torch.Generator().manual_seed(seed)
    x, found = torch.tensor([[0.0, 0.0]]), torch.empty(0, 2)
    while len(found) < number:
        theta = 2 * torch.rand(200_000, 2, generator=generator) - 1
        value = problem.log_posterior(theta[:, None], x)[:, 0]
        keep = torch.rand(len(theta), generator=generator).log() < value - value.max()
        found = torch.cat((found, theta[keep]))
    return found[:number].double().numpy()


def ridge(number, seed):
    rng = np.random.default_rng(seed)
    return rng.multivariate_normal([0, 0], [[1, 0.95], [0.95, 1]], number)


def at_the_edge(number, seed):
    return 1 - np.random.default_rng(seed).exponential(0.2, (3 * number, 2)).clip(max=2)[:number]


CASES = {"moons": (two_moons, BOX), "ridge": (ridge, FREE), "edge": (at_the_edge, BOX)}


def filled(axis, place):
    """The paths of a filled region."""
    sets = [c for c in axis.collections if len(c.get_paths()) and c.get_paths()[0].vertices.size]
    return sets[place].get_paths()[0]


def held(path, draws):
    """The share of draws inside a path with holes: an odd number of loops around them."""
    loops = [Path(part) for part in path.to_polygons()]
    inside = np.sum([loop.contains_points(draws) for loop in loops], axis=0)
    return float((inside % 2 == 1).mean())


@pytest.mark.parametrize("number", [1000, 4096])
@pytest.mark.parametrize("name", CASES)
def test_regions_hold_what_the_caption_says(name, number):
    """Of other draws from the same posterior, counted inside what was drawn."""
    make, bounds = CASES[name]
    draws, others = make(number, 1), make(4096, 2)
    figure = corners.corner(draws, ["a", "b"], "title", bounds=bounds)
    axis = figure.axes[1]
    for place, share in enumerate((0.9, 0.5)):
        path = filled(axis, place)
        # Twice the standard deviation of shares by so many draws, and as much for the drawing.
        assert abs(held(path, others) - share) < 4 * np.sqrt(share * (1 - share) / number)
    assert abs(held(filled(axis, 1), others) - 0.9) > 0.3  # the negative control
    note = figure.legends[0].get_title().get_text()
    assert "regions hold 50 % and 90 % of the posterior" in note


def test_heights_by_the_draws_themselves_would_promise_too_much():
    """Each draw raises the density at its own place."""
    draws, others = two_moons(1000, 1), two_moons(4096, 2)
    shown = corners.Surface.of(draws, corners._limits([draws], BOX))
    height = np.sort(shown.at(draws))[::-1]
    for share, honest in zip(corners.MASSES, shown.levels(draws), strict=True):
        naive = height[int(share * len(draws))]
        assert (shown.at(others) >= naive).mean() < share - 0.04
        assert abs((shown.at(others) >= honest).mean() - share) < 0.04


def test_copies_of_draws_do_not_vouch_for_each_other():
    """As draws of ratios are that are worth less than their number: regions must not shrink."""
    draws, others = ridge(300, 1), ridge(4096, 2)
    shown = corners.Surface.of(np.tile(draws, (4, 1)), limits := corners._limits([draws], FREE))
    alone = corners.Surface.of(draws, limits)
    assert shown.width == alone.width
    level, expected = shown.levels(np.tile(draws, (4, 1)))[1], alone.levels(draws)[1]
    assert level == pytest.approx(expected, rel=0.05)
    assert abs((shown.at(others) >= level).mean() - 0.5) < 0.09


@pytest.mark.parametrize("dim", [1, 2])
def test_the_density_by_the_others_is_that_without_a_draw(dim):
    draws = np.random.default_rng(0).normal(size=(60, dim))
    limits = corners._limits([draws], np.tile([-1.0, np.inf], (dim, 1)))
    shown = corners.Surface.of(draws, limits)
    for index in (0, 7, int(draws[:, 0].argmax())):
        others = np.delete(draws, index, axis=0)
        counts = corners._counts(others, limits)
        expected = corners.Surface._of_counts(counts, shown.width, len(others), limits)
        np.testing.assert_allclose(
            shown.by_others(draws)[index], expected.at(draws[[index]])[0], atol=1e-12
        )


def test_thin_crescents_are_not_blurred():
    """The 90 % region of two moons has an area of 0.019; a blur of 1.5 of 36 bins adds to it."""
    draws = two_moons(4096, 1)
    shown = corners.Surface.of(draws, corners._limits([draws], BOX))
    level = shown.levels(draws)[0]
    cell = np.prod([own[2] - own[1] for own in shown.points])
    assert 0.016 < (shown.height >= level).sum() * cell < 0.023
    limits = corners._limits([draws], BOX)
    counts, width = corners._counts(draws, limits), corners.CELLS * 1.5 / 36
    blurred = corners.Surface._of_counts(counts, width, len(draws), limits)
    assert (blurred.height >= blurred.levels(draws)[0]).sum() * cell > 0.026


@pytest.mark.parametrize("width", [0.6, 4.5])
def test_smoothing_keeps_the_mass_and_the_place(width):
    counts = np.zeros((60, 60))
    counts[22, 37] = 5.0
    blurred = corners.smooth(counts, width)
    assert blurred.sum() == pytest.approx(5.0)
    assert np.unravel_index(blurred.argmax(), blurred.shape) == (22, 37)


def test_nothing_crosses_the_bounds_and_nothing_sags_there():
    draws = np.random.default_rng(0).uniform(-1, 1, (4096, 1))
    shown = corners.Surface.of(draws, corners._limits([draws], BOX[:1]))
    assert (shown.points[0][0], shown.points[0][-1]) == (-1, 1)
    assert np.abs(shown.height - 0.5).max() < 0.1
    figure = corners.corner(draws, ["a"], "title", bounds=BOX[:1])
    lines = [line.get_xdata()[0] for line in figure.axes[0].lines if len(line.get_xdata())]
    assert lines == [-1, 1]


@pytest.mark.parametrize("dim", [1, 2, 3, 8])
def test_panels(dim):
    draws = np.random.default_rng(0).normal(size=(500, dim))
    names = [f"name {i}" for i in range(dim)]
    figure = corners.corner(
        draws, names, "title", truth=np.full(dim, 9.0), prior=lambda i, p: 0 * p + i
    )
    assert len(figure.axes) == dim * (dim + 1) // 2
    assert [a.get_xlabel() for a in figure.axes if a.get_xlabel()] == names
    assert all(axis.get_xlim()[1] > 9 for axis in figure.axes)  # a truth far away is in sight
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["posterior", "prior", "truth"]


def test_a_constant_parameter_can_be_drawn():
    draws = np.ones((100, 2))
    corners.corner(draws, ["a", "b"], "title")
