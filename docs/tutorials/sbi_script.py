import torch
from sbi.inference import NPE, simulate_for_sbi
from sbi.utils import BoxUniform

import prudent


def simulator(theta):
    return theta + 0.3 * torch.randn_like(theta)


prior = BoxUniform(-torch.ones(2), torch.ones(2))
theta, x = simulate_for_sbi(simulator, prior, 1200, show_progress_bar=False)
inference = NPE(prior, density_estimator="nsf", show_progress_bars=False)
inference.append_simulations(theta[:200], x[:200]).train(learning_rate=5e-3, max_num_epochs=60)
estimator = prudent.adapt(inference.build_posterior())

diagnosis = prudent.diagnose(estimator, theta[700:], x[700:])
print(diagnosis.verdict)
repaired = prudent.recalibrate(estimator, theta[200:700], x[200:700])
print(repaired(x[0]))
again = prudent.diagnose(repaired, theta[700:], x[700:])
print(again.verdict)
again.plot().savefig("coverage.png")
