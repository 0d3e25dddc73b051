"""One contract over both estimators: shapes, densities, sampling, saving, loading."""

import json
import struct

import pytest
import torch
from torch import nn
from torch.distributions import Exponential, Independent, MultivariateNormal, Normal, Uniform

import prudent
from prudent.errors import DataError, InputError, StoreError
from prudent.estimators import FlowEstimator, RatioEstimator
from prudent.priors.checks import from_spec, to_spec
from prudent.priors.density import log_density

KINDS = [RatioEstimator, FlowEstimator]


def make(kind, dim=2, *, seed=0, **options):
    problem = prudent.problems.get("gaussian", dim=dim)
    theta, x = problem.draw(200, 0)
    torch.manual_seed(seed)
    estimator = kind(problem.prior, dim, (dim,), **options)
    estimator.adapt(theta, x)
    return estimator.eval(), theta, x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_shapes(kind, dim):
    estimator, theta, x = make(kind, dim)
    posterior = estimator(x[:7])
    assert posterior.log_prob(theta[:7]).shape == (7,)
    assert posterior.log_prob(theta[:7].expand(5, 3, 7, dim)).shape == (5, 3, 7)
    assert posterior.log_ratio(theta[:7]).shape == (7,)
    assert posterior.sample().shape == (7, dim)
    assert posterior.sample((4, 2)).shape == (4, 2, 7, dim)
    assert len(posterior) == 7


@pytest.mark.parametrize("kind", KINDS)
def test_rows_reuse_the_embedding(kind):
    class Counting(nn.Flatten):
        calls = 0

        def forward(self, values):
            type(self).calls += 1
            return super().forward(values)

    estimator, theta, x = make(kind, embedding=Counting())
    Counting.calls = 0
    posterior = estimator(x)
    everything = posterior.log_prob(theta)
    index = torch.tensor([5, 3, 150])
    torch.testing.assert_close(posterior.rows(index).log_prob(theta[index]), everything[index])
    torch.testing.assert_close(
        posterior.rows(slice(10, 20)).log_prob(theta[10:20]), everything[10:20]
    )
    posterior.rows(index).sample((3,))
    assert Counting.calls == 1


@pytest.mark.parametrize("kind", KINDS)
def test_log_prob_is_prior_times_ratio(kind):
    estimator, theta, x = make(kind)
    posterior = estimator(x)
    expected = estimator.prior.log_prob(theta) + posterior.log_ratio(theta)
    torch.testing.assert_close(posterior.log_prob(theta), expected)


def test_flow_density_is_in_the_units_of_theta():
    """Integrates to one on a grid although theta is standardised inside."""
    estimator, _, x = make(FlowEstimator, dim=1)
    with torch.no_grad():
        estimator.theta_scale.scale.fill_(7.0)
        grid = torch.linspace(-60, 60, 4001)
        density = estimator(x[:3]).log_prob(grid[:, None, None].expand(-1, 3, 1)).exp()
    torch.testing.assert_close(
        density.sum(0) * (grid[1] - grid[0]), torch.ones(3), atol=1e-3, rtol=0
    )


def test_ratio_samples_follow_the_posterior():
    """With the exact log ratio in place of the network, samples have the exact moments."""
    estimator, theta, x = make(RatioEstimator, dim=1, linear=False)
    exact = prudent.problems.get("gaussian", dim=1).log_posterior

    class Exact(nn.Module):
        def forward(self, point, data):
            return (exact(point, data) - estimator.prior.log_prob(point)).unsqueeze(-1)

    estimator.theta_scale.scale.fill_(1.0)
    estimator.theta_scale.location.fill_(0.0)
    estimator.x_scale = nn.Identity()
    estimator.x_scale.scale = torch.ones(1)
    estimator.head = Exact()
    torch.manual_seed(0)
    samples = estimator(x[:20]).sample((4000,))
    mean, deviation = 0.8 * x[:20], (0.25 / 1.25) ** 0.5
    # 4,000 draws and 8,192 candidates: about 0.01 standard error at this width.
    assert (samples.mean(0) - mean).abs().max() < 0.05
    assert (samples.std(0) - deviation).abs().max() < 0.04


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load_give_the_same_densities(kind, tmp_path):
    estimator, theta, x = make(kind, hidden=(16, 16))
    estimator.info = {"method": "test", "seed": 3}
    estimator.save(tmp_path / "model.safetensors")
    again = prudent.load(tmp_path / "model.safetensors")
    assert type(again) is kind
    assert again.info == estimator.info
    assert torch.equal(again(x).log_prob(theta), estimator(x).log_prob(theta))
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("members", [1, 2])
def test_the_history_is_saved_but_for_its_times(members, tmp_path, monkeypatch):
    problem = prudent.problems.get("gaussian")
    estimator = prudent.fit(
        *problem.draw(64, 0), problem.prior, method="calnpe", members=members, epochs=3,
        batch_size=16, hidden=[4], progress=False,
    )  # fmt: skip
    estimator.save(tmp_path / "model.safetensors")
    again = prudent.load(tmp_path / "model.safetensors")
    assert len(again.history) == 3 * members
    assert again.history.to_jsonl() == estimator.history.to_jsonl(times=False)
    assert again.to_bytes() == estimator.to_bytes()
    monkeypatch.setattr("prudent.estimators.base.MOST_ROWS", 2)
    estimator.save(tmp_path / "short.safetensors")
    assert prudent.load(tmp_path / "short.safetensors").history == again.history[-2:]


def test_save_and_load_with_networks_and_priors_of_ones_own(tmp_path):
    class Strange:
        def sample(self, shape=()):
            return torch.rand(*shape, 2)

        def log_prob(self, theta):
            return torch.zeros(theta.shape[:-1])

    def network():
        return nn.Sequential(nn.Flatten(), nn.Linear(2, 3))

    estimator = RatioEstimator(Strange(), 2, (2,), network(), hidden=(8,)).eval()
    path = tmp_path / "model.safetensors"
    with pytest.warns(UserWarning, match="prior of Strange; read it with"):
        estimator.save(path)
    with pytest.raises(InputError, match="prior=..."):
        prudent.load(path)
    with pytest.raises(InputError, match="embedding=..."):
        prudent.load(path, prior=Strange())
    with pytest.raises(InputError, match="do not fit"):
        prudent.load(path, prior=Strange(), embedding=nn.Sequential(nn.Flatten(), nn.Linear(2, 4)))
    again = prudent.load(path, prior=Strange(), embedding=network())
    theta, x = torch.rand(5, 2), torch.rand(5, 2)
    assert torch.equal(again(x).log_prob(theta), estimator(x).log_prob(theta))


def test_damaged_files_are_refused(tmp_path):
    estimator, _, _ = make(RatioEstimator, hidden=(8,))
    path = tmp_path / "model.safetensors"
    estimator.save(path)
    whole = path.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    generator = torch.Generator().manual_seed(0)
    damaged = [whole[: len(whole) // 2], b"", whole + b"x", b"not a model at all"]
    for position in torch.randint(len(whole), (200,), generator=generator).tolist():
        flipped = bytearray(whole)
        flipped[position] ^= 1 << (position % 8)
        damaged.append(bytes(flipped))
    for position in range(header, header + 4):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        damaged.append(bytes(flipped))
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises((StoreError, InputError)):
            prudent.load(path)
    path.write_bytes(whole)
    prudent.load(path)


def test_a_kind_of_ours_is_not_replaced():
    for kind in ("nre", "npe"):
        with pytest.raises(InputError, match=f"kind `{kind}` is taken by .* use another name"):
            type("Mine", (FlowEstimator,), {"kind": kind})
    assert prudent.estimators.KINDS == {"nre": RatioEstimator, "npe": FlowEstimator}
    for _ in range(2):  # a cell of a notebook that is executed again
        mine = type("Mine", (FlowEstimator,), {"kind": "mine"})
        assert prudent.estimators.KINDS.pop("mine") is mine


def test_other_files_are_refused(tmp_path):
    import safetensors.torch

    path = tmp_path / "model.safetensors"
    with pytest.raises(StoreError, match="no file"):
        prudent.load(path)
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(2)}))
    with pytest.raises(StoreError, match="not written by prudent"):
        prudent.load(path)
    newer = {"prudent": json.dumps({"settings": {"format": 99}})}
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(2)}, newer))
    with pytest.raises(StoreError, match="format 99"):
        prudent.load(path)
    estimator, _, _ = make(RatioEstimator, hidden=(8,))
    with pytest.raises(InputError, match="directory"):
        estimator.save(tmp_path)
    with pytest.raises(StoreError, match="could not write"):
        estimator.save(tmp_path / "missing" / "model.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_observations_are_named(kind):
    estimator, _, x = make(kind)
    with pytest.raises(DataError, match=r"shape \(N, 2\)"):
        estimator(torch.zeros(4, 3))
    bad = x.clone()
    bad[3, 1] = torch.nan
    with pytest.raises(DataError, match="1 of 200"):
        estimator(bad)


def test_embedding_of_the_wrong_shape_is_named():
    with pytest.raises(InputError, match="to \\(2, F\\)"):
        RatioEstimator(prudent.problems.get("gaussian").prior, 2, (3, 4), nn.Identity())


def test_repr_says_something():
    estimator, _, x = make(RatioEstimator)
    assert "theta (2,)" in repr(estimator)
    assert "200 observations" in repr(estimator(x))


PRIORS = [
    Independent(Uniform(torch.zeros(2), torch.ones(2)), 1),
    Independent(Normal(torch.zeros(3), torch.ones(3)), 1),
    MultivariateNormal(torch.zeros(2), torch.tensor([[2.0, 0.5], [0.5, 1.0]])),
    Independent(Exponential(torch.ones(2, dtype=torch.float64)), 1),
]


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_priors_survive_json(prior):
    again = from_spec(json.loads(json.dumps(to_spec(prior))))
    theta = prior.sample((50,))
    assert torch.equal(again.log_prob(theta), prior.log_prob(theta))


def test_a_file_cannot_name_any_class():
    with pytest.raises(StoreError, match="known:"):
        from_spec({"class": "kl_divergence", "dtype": "float32", "parameters": {}})
    assert to_spec(object()) is None


def test_prior_density_outside_its_support_is_zero():
    prior = PRIORS[0]
    theta = torch.tensor([[0.5, 0.5], [1.5, 0.5], [-0.1, 2.0]])
    assert log_density(prior, theta).tolist() == [0.0, -torch.inf, -torch.inf]
    assert log_density(prior, theta[1:]).tolist() == [-torch.inf] * 2


@pytest.mark.parametrize("hidden", [None, (), (8,)])
def test_a_flow_tells_the_density_of_its_draws(hidden):
    estimator, _, x = make(FlowEstimator, hidden=hidden)
    posterior = estimator(x[:6])
    torch.manual_seed(0)
    noise = torch.randn(50, 6, estimator.dim)
    close = {"atol": 1e-3, "rtol": 1e-4}
    drawn = [posterior.from_noise(noise)[:2], posterior.sample_and_log_prob((50,))]
    drawn.append(posterior.from_noise(noise, spread=1.5)[:2])
    for draws, log_prob in drawn:
        assert draws.shape == noise.shape
        with torch.no_grad():
            torch.testing.assert_close(log_prob, posterior.log_prob(draws), **close)
    assert torch.equal(posterior.from_noise(noise)[0], posterior.from_noise(noise)[0])
    # What drew them is the flow itself, or a wider one: of noise of that spread.
    _, log_prob, log_proposal = posterior.from_noise(noise)
    torch.testing.assert_close(log_proposal, log_prob)
    draws, log_prob, log_proposal = posterior.from_noise(noise, spread=1.5)
    flow = posterior.density.flow()
    wide = Normal(0.0, 1.5).log_prob(1.5 * noise).sum(-1) - flow.base.log_prob(1.5 * noise)
    torch.testing.assert_close(log_proposal - log_prob, wide, **close)
    with torch.no_grad():
        both = posterior.density.widened(draws, 1.5)
    torch.testing.assert_close(torch.stack(both), torch.stack((log_prob, log_proposal)), **close)


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_draws_to_keep_are_those_with_a_gradient(dim):
    """They take another way, with the same random numbers, and may be none."""
    estimator, _, x = make(FlowEstimator, dim=dim)
    posterior = estimator(x[:6])
    torch.manual_seed(3)
    expected = posterior.rsample((5, 7)).detach()
    for draw in (posterior.sample, lambda shape: posterior.sample_and_log_prob(shape)[0]):
        torch.manual_seed(3)
        torch.testing.assert_close(draw((5, 7)), expected, atol=1e-4, rtol=1e-4)
        torch.manual_seed(4)
        assert not torch.allclose(draw((5, 7)), expected, atol=1e-4, rtol=1e-4)
    draws, log_prob = posterior.sample_and_log_prob(0)
    assert (draws.shape, log_prob.shape) == ((0, 6, dim), (0, 6))


@pytest.mark.parametrize("dim", [2, 3, 5])
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("networks", ["paper", "standard"])
def test_splines_from_noise_equal_those_of_zuko(dim, broken, networks, monkeypatch):
    """Same draws and densities; if our formulas were not zuko's, zuko would do the work."""
    options = FlowEstimator.paper((dim,)) if networks == "paper" else {}
    estimator, _, x = make(FlowEstimator, dim=dim, **options)
    with torch.no_grad():
        for parameter in estimator.head.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    if broken:
        monkeypatch.setattr("prudent.estimators._splines.BOUND", 4.0)
    posterior = estimator(x[:6])
    noise = 2 * torch.randn(200, 6, dim)
    draws, log_prob, _ = posterior.from_noise(noise)
    with torch.no_grad():
        flow = posterior.density.flow()
        inputs, log_volume = flow.transform.inv.call_and_ladj(noise)
        density = flow.base.log_prob(noise) - log_volume - estimator.theta_scale.log_scale()
        if networks == "standard":
            left = estimator.regression
            inputs = left.inverse(inputs, posterior.density.features)
            density -= left.log_scale()
        expected = estimator.theta_scale.inverse(inputs)
    torch.testing.assert_close(draws, expected, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(log_prob, density, atol=2e-2, rtol=1e-3)
