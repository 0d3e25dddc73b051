"""Simulators of one's own: batched or not, arrays or tensors, and what is refused."""

import numpy as np
import pytest
import torch
from torch.distributions import Uniform

from prudent import problems
from prudent.errors import InputError

PRIOR = problems.box([0.0, 0.0], [1.0, 2.0])


def batched_torch(theta):
    return theta.sum(1, keepdim=True) + 0.1 * torch.randn(len(theta), 3)


def single_torch(theta):
    assert theta.ndim == 1
    return theta.sum() + 0.1 * torch.randn(3)


def batched_numpy(theta):
    return np.add.reduce(theta, axis=1, keepdims=True) + 0.1 * np.random.normal(
        size=(len(theta), 3)
    )


def single_numpy(theta, rng):
    return float(theta[0]) + float(theta[1]) + 0.1 * rng.normal(size=3)


def single_numpy_functions(theta, rng):
    """Numpy takes tensors here, but says that it will not for ever."""
    return np.exp(np.log(theta[0] + theta[1])) * np.ones(3) + 0.1 * rng.normal(size=3)


def with_generator(theta, generator):
    return theta.sum(1, keepdim=True) + 0.1 * torch.randn(len(theta), 3, generator=generator)


KINDS = [
    batched_torch,
    single_torch,
    batched_numpy,
    single_numpy,
    single_numpy_functions,
    with_generator,
]


@pytest.mark.parametrize("simulator", KINDS)
def test_every_kind_of_simulator(simulator):
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    problem = problems.custom(simulator, PRIOR)
    theta, x = problem.draw(500, seed=1)
    assert x.shape == (500, 3)
    assert x.dtype == torch.float32
    # Standard error of the mean over 500 rows is 0.0045.
    error = x - theta.sum(1, keepdim=True)
    assert error.mean().abs() < 0.02
    assert 0.09 < error.std() < 0.11
    again, other = problem.draw(500, seed=1), problem.draw(500, seed=2)
    assert torch.equal(again[1], x)
    assert not torch.equal(other[1], x)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])


def test_an_observation_of_two_numbers_is_not_a_batch_of_two():
    problem = problems.custom(lambda theta: theta.mean() + torch.randn(2), PRIOR)
    assert problem.x_shape == (2,)
    assert problem.draw(5, 0)[1].shape == (5, 2)


def test_one_number_per_simulation_becomes_a_vector():
    assert problems.custom(lambda theta: theta[:, 0], PRIOR).x_shape == (1,)
    assert problems.custom(lambda theta: float(theta[0]), PRIOR, batched=False).x_shape == (1,)


def broken(theta):
    raise RuntimeError("no licence")


@pytest.mark.parametrize(
    ("simulator", "options", "message"),
    [
        (broken, {}, "no licence"),
        (lambda theta: None, {}, "failed on draws"),
        (lambda theta: "text", {}, "failed on draws"),
        (lambda theta: torch.zeros(len(theta), 2, dtype=torch.complex64), {}, "complex"),
        (batched_torch, {"parameter_names": ["a"]}, "expected 2 parameter names"),
        (
            batched_torch,
            {"prior": Uniform(torch.zeros(2), torch.ones(2))},
            "Independent(prior, 1)",
        ),
        (batched_torch, {"prior": object()}, "torch distribution"),
    ],
)
def test_what_cannot_work_is_named(simulator, options, message):
    with pytest.raises(InputError) as error:
        problems.custom(simulator, options.pop("prior", PRIOR), **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_module_and_attribute(tmp_path, monkeypatch):
    (tmp_path / "my_simulator.py").write_text(
        "import torch\nfrom prudent import problems\n"
        "prior = problems.box([0.0], [1.0])\n"
        "problem = problems.custom(lambda theta: theta + torch.randn(len(theta), 2), prior)\n"
        "def make():\n    return problem\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert problems.get("my_simulator:problem").x_shape == (2,)
    assert problems.get("my_simulator:make").x_shape == (2,)
    for name, message in [
        ("my_simulator:nothing", "no attribute `nothing`"),
        ("my_simulator:number", "expected a Problem"),
        ("missing_module:problem", "cannot import `missing_module`"),
    ]:
        with pytest.raises(InputError, match=message):
            problems.get(name)
