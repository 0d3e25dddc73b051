"""Approximators of BayesFlow, on Keras's torch backend."""

import os

import pytest
import torch
from peers import BOX, check_alpha, check_gradients, pairs, peer

import prudent

pytestmark = pytest.mark.filterwarnings("ignore")  # those of Keras


@pytest.fixture(scope="module")
def approximator():
    os.environ.setdefault("KERAS_BACKEND", "torch")
    bayesflow = peer("bayesflow")
    adapter = bayesflow.adapters.Adapter().convert_dtype("float64", "float32")
    adapter = adapter.rename("theta", "inference_variables").rename("x", "inference_conditions")
    network = bayesflow.networks.CouplingFlow(depth=2)
    made = bayesflow.approximators.ContinuousApproximator(
        adapter=adapter, inference_network=network, standardize="all"
    )
    theta, x = (values.numpy() for values in pairs(BOX, 128, 0))
    made.compile(optimizer="adam")
    dataset = bayesflow.datasets.OfflineDataset(
        {"theta": theta, "x": x}, batch_size=64, adapter=adapter
    )
    with torch.enable_grad():
        made.fit(dataset=dataset, epochs=2, verbose=0)
    # The import switches gradients off for all of torch.
    torch.set_grad_enabled(True)
    return made


def test_an_approximator(approximator):
    def log_prob(theta, x):
        return torch.as_tensor(approximator.log_prob({"theta": theta.numpy(), "x": x.numpy()}))

    check_gradients(approximator, BOX)
    check_alpha(approximator, BOX, log_prob, normalized=True)
    found = prudent.diagnose(
        prudent.adapt(approximator, BOX, keys=("theta", "x")), *pairs(BOX, 20, 1), progress=False
    )
    assert found.num_invalid == 0


def test_draws_repeat_with_the_seed(approximator):
    posterior = prudent.adapt(approximator, BOX)(torch.zeros(2))
    assert torch.equal(posterior.sample(5, seed=0), posterior.sample(5, seed=0))
    assert not torch.equal(posterior.sample(5, seed=0), posterior.sample(5, seed=1))


def test_a_wrong_name_is_told(approximator):
    with pytest.raises(prudent.errors.InputError, match="draws theta and not parameters"):
        prudent.adapt(approximator, BOX, keys=("parameters", "x"))(torch.zeros(2)).sample(2)
