import torch
from sbi.inference import NPE, simulate_for_sbi
from sbi.utils import BoxUniform

import prudent


def simulator(theta):
    return theta + 0.3 * torch.randn_like(theta)


prior = BoxUniform(-torch.ones(2), torch.ones(2))
theta, x = simulate_for_sbi(simulator, prior, 1100, show_progress_bar=False)
inference = NPE(prior, show_progress_bars=False)
inference.append_simulations(theta[:100], x[:100]).train(learning_rate=5e-3, max_num_epochs=60)
estimator = prudent.adapt(inference.build_posterior())

diagnosis = prudent.diagnose(estimator, theta[600:], x[600:])
print(diagnosis.verdict)
repaired = prudent.recalibrate(estimator, theta[100:600], x[100:600])
print(repaired(x[0]))
again = prudent.diagnose(repaired, theta[600:], x[600:])
print(again.verdict)
again.plot().savefig("coverage.png")
