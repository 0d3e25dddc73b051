"""What every kind of estimator says, digit by digit: a redesign has to say the same.

`python tests/golden.py write FILE` notes it down, and `python tests/golden.py compare FILE` lists
what has changed since. Bits belong to a machine and its torch, so that the file is made on the
spot, before a change, and not kept. A note is a hash of weights, the bytes of a saved estimator,
words, or numbers in hexadecimal.
"""

import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch.distributions import Independent, Normal, Uniform

import prudent
from prudent.coverage import CoveragePenalty, Nominal
from prudent.estimators import Ensemble
from prudent.recalibration import conformalize

PROBLEM = prudent.problems.get("two_moons")
SMALL = {"hidden": [16, 16], "progress": False, "seed": 3}
PAPER = {"preset": "paper", "epochs": 3, "progress": False, "seed": 3}
COVERED = ("nre", "bnre", "calnre", "npe", "calnpe")
TRAININGS = {
    **{f"paper {name}": {"method": name, **PAPER} for name in COVERED},
    **{
        f"paper {name}, calibrated": {"method": name, **PAPER, "target": "calibrated"}
        for name in ("calnre", "calnpe")
    },
    "paper calnre, L = 128": {"method": "calnre", **PAPER, "num_samples": 128},
    "paper calnpe, direct": {"method": "calnpe", **PAPER, "computation": "direct"},
    **{
        f"{name}, all steps": {"method": name, **SMALL, "fraction": 1.0, "epochs": 3}
        for name in ("calnre", "calnpe")
    },
    **{name: {"method": name, **SMALL, "epochs": 4} for name in (*COVERED, "bnpe")},
    **{
        f"calnpe, {name} draws": {"method": "calnpe", **SMALL, "epochs": 3, "proposal": name}
        for name in ("model", "model-rsample", "draws", "prior", "even")
    },
    "calnre, nominal draws": {"method": "calnre", **SMALL, "epochs": 3, "proposal": "nominal"},
    "leaking": {"method": "npe", **SMALL, "epochs": 2, "networks": "paper"},
    "recommended": {**SMALL, "epochs": 6},
    "pool of seeds": {"method": "npe", **SMALL, "epochs": 3, "members": 3},
    "leaking pool": {
        "method": "npe", **SMALL, "epochs": 2, "members": 2, "networks": "paper",
    },
    "pool of ratios": {"method": "nre", **SMALL, "epochs": 3, "members": 3},
    "warm ratios": {
        "method": "nre", **SMALL, "epochs": 3, "members": 2, "ensemble": "folds",
        "recalibrate": "conservative",
    },
}  # fmt: skip


def short(data):
    return hashlib.sha256(data).hexdigest()[:16]


def bits(value):
    """Numbers in hexadecimal; of many a hash, and the first three."""
    value = torch.as_tensor(value).detach()
    numbers = [float(number).hex() for number in value.double().flatten()[:3]]
    whole = short(value.contiguous().numpy().tobytes())
    return f"{value.dtype} {tuple(value.shape)} {whole} {' '.join(numbers)}"


def trained():
    theta, x = PROBLEM.draw(256, 0)
    return {name: prudent.fit(theta, x, PROBLEM.prior, **how) for name, how in TRAININGS.items()}


def foreign():
    """Adapted functions of every kind, about a normal posterior."""
    prior, spread = Independent(Uniform(-3 * torch.ones(2), 3 * torch.ones(2)), 1), 0.8

    def log_prob(theta, x):
        return Normal(x, spread).log_prob(theta).sum(dim=-1)

    def sample(number, x):
        return x + spread * torch.randn(number, *x.shape)

    return {
        "density": prudent.adapt(prior=prior, log_prob=log_prob, sample=sample),
        "draws": prudent.adapt(prior=prior, sample=sample),
        "ratio": prudent.adapt(prior=prior, log_prob=log_prob, normalized=False),
    }


def asked(function):
    """What a call returns, or raises."""
    torch.manual_seed(5)
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def said(estimator, theta, x):
    """What an estimator says of some pairs."""
    posterior = estimator(x)
    questions = {
        "log_prob": lambda: bits(posterior.log_prob(theta)),
        "log_prob of many": lambda: bits(posterior.log_prob(theta.expand(3, *theta.shape))),
        "log_ratio": lambda: bits(posterior.log_ratio(theta)),
        "sample": lambda: bits(posterior.sample((40,), seed=1)),
        "sample_and_log_prob": lambda: bits(posterior.sample_and_log_prob((7,))[1]),
        "rows": lambda: bits(posterior.rows(slice(1, 3)).log_prob(theta[1:3])),
        "rows by index": lambda: bits(posterior.rows(torch.tensor([2, 0])).sample((5,))),
        "from_noise": lambda: " ".join(
            bits(part) for part in posterior.from_noise(torch.randn(20, len(x), 2))
        ),
        "rsample": lambda: bits(posterior.rsample((4,))),
        "region": lambda: bits(posterior.region(0.8).contains(theta)),
        "map": lambda: bits(posterior.rows(slice(0, 2)).map()),
        "mean": lambda: bits(posterior.mean()),
        "interval": lambda: " ".join(bits(part) for part in posterior.interval(0.9)),
        "notes": lambda: posterior.rows(slice(0, 1)).notes(),
        "text": lambda: str(posterior.rows(slice(0, 1))),
        "repr": lambda: repr(posterior),
        "summary": estimator.summary,
        "verdict": lambda: str(prudent.diagnose(estimator, theta, x, progress=False).verdict),
        "bytes": lambda: short(saved(estimator)),
    }
    return {name: asked(question) for name, question in questions.items()}


def saved(estimator):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        estimator.save(path)
        return path.read_bytes()


def penalties():
    """The penalty and its gradient in somebody's own loop, by every proposal."""
    theta, x = PROBLEM.draw(64, 1)
    estimator = prudent.fit(*PROBLEM.draw(256, 0), PROBLEM.prior, method="npe", epochs=2, **SMALL)
    found = {}
    for name, penalty in {
        "paper": CoveragePenalty.paper(PROBLEM.prior),
        "prior": CoveragePenalty(PROBLEM.prior),
        "model": CoveragePenalty("model"),
        "rsample": CoveragePenalty("model-rsample"),
        "draws": CoveragePenalty("draws"),
        "nominal": CoveragePenalty(Nominal(PROBLEM.prior)),
    }.items():
        torch.manual_seed(7)
        values = [penalty(estimator.train()(x), theta) for _ in range(3)]
        estimator.zero_grad()
        torch.stack(values).sum().backward()
        slopes = [p.grad.flatten() for p in estimator.parameters() if p.grad is not None]
        found[name] = {
            "value": bits(torch.stack(values)),
            "slope": bits(torch.cat(slopes) if slopes else torch.zeros(1)),
        }
    return found


def everything():
    warnings.simplefilter("ignore")
    theta, x = PROBLEM.draw(40, 9)
    own = trained()
    found = {
        f"weights of {name}": short(b"".join(v.numpy().tobytes() for v in e.state_dict().values()))
        for name, e in own.items()
    }
    asked_of = {
        name: own[name] for name in own if not name.startswith("paper") or "cal" not in name
    }
    asked_of["ensemble of one"] = Ensemble([own["npe"]])
    for name, estimator in asked_of.items():
        found[name] = asked(lambda estimator=estimator: said(estimator, theta, x))
    normal = 6 * torch.rand(40, 2, generator=torch.Generator().manual_seed(0)) - 3
    pairs = normal, normal + 0.8 * torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    others = foreign()
    others |= {
        f"{name}, recalibrated": asked(lambda e=e: prudent.recalibrate(e, *pairs))
        for name, e in others.items()
    }
    for name, estimator in others.items():
        found[f"adapted {name}"] = asked(lambda estimator=estimator: said(estimator, *pairs))
    for name in ("npe", "nre", "recommended"):
        again = conformalize(own[name], theta, x)
        found[f"conformal {name}"] = said(again, *PROBLEM.draw(40, 10))
        warm = prudent.recalibrate(own[name], theta, x)
        found[f"recalibrated {name}"] = said(warm, *PROBLEM.draw(40, 10))
    return found | {f"penalty {name}": one for name, one in penalties().items()}


def differences(before, after, path=""):
    if isinstance(before, dict) and isinstance(after, dict):
        for name in [*before, *(name for name in after if name not in before)]:
            yield from differences(before.get(name), after.get(name), f"{path} / {name}")
    elif before != after:
        yield f"{path.removeprefix(' / ')}:\n    {before}\n    {after}"


def main():
    what, path = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    found = json.loads(json.dumps(everything()))
    if what == "write":
        path.write_text(json.dumps(found, indent=1))
        return
    changed = list(differences(json.loads(path.read_text()), found))
    print("\n".join(changed) or "everything is the same")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
