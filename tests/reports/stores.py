"""Results without training: tables and stores made by a formula, for tests of what is shown.

Coverage is a power of the level, and the power follows from method, budget and weight as one
expects: plain methods are over-confident with few simulations, regularised ones are cautious and
pay with log posterior. A seeded generator adds what differs between seeds.
"""

import math
import zlib
from itertools import groupby, product
from unittest import mock

import numpy as np
import pandas as pd
import torch

from prudent._files import to_json
from prudent.diagnostics.ranks import TARP_DISTANCE, Ranks
from prudent.diagnostics.sbc import sbc
from prudent.diagnostics.tarp import tarp
from prudent.diagnostics.verdict import Curve
from prudent.experiments import Results, store
from prudent.experiments.config import RunConfig
from prudent.history import History
from prudent.training import methods as registry
from prudent.training.options import Options

PROBLEMS = ("slcp", "weinberg")
METHODS = ("nre", "bnre", "calnre", "npe", "calnpe")
BUDGETS = (1024, 4096, 16384)
SEEDS = (0, 1, 2)
LEVELS = np.round(np.arange(1, 100) * 0.01, 2)
PARAMETERS = {
    "weinberg": ("fermi_constant",),
    "mg1": ("service_bound_1", "service_bound_2", "arrival_rate"),
}
KEYS = ("run", "problem", "method", "budget", "seed")
TABLES = {
    "curves": ("level", "coverage", "lower", "upper"),
    "history": ("member", "epoch", "loss", "validation_loss", "learning_rate"),
    "ranks": ("test", "parameter", "level", "value", "lower", "upper", "p_value"),
    "draws": ("kind", "draw", "parameter", "value"),
}
RANKS = {name: name for name in ("level", "value", "lower", "upper")}
DRAWS = {"value": "values"}


def grid(
    problems=PROBLEMS,
    methods=METHODS,
    budgets=BUDGETS,
    seeds=SEEDS,
    *,
    training=({},),
    thorough=False,
):
    """The configs of a sweep; a method without a penalty is run once, whatever the settings.

    Args:
        problems: Names.
        methods: Names.
        budgets: Numbers of simulations.
        seeds: Whole numbers.
        training: Dictionaries of :class:`prudent.training.Options`, one per variant.
        thorough: With ranks and draws.
    """
    found = {}
    for problem, budget, method, options, seed in product(
        problems, budgets, methods, training, seeds
    ):
        own = {"epochs": 20, **options}
        if registry.get(method).regularizer is None:
            own = {k: v for k, v in own.items() if k not in ("weight", "num_samples")}
        config = RunConfig(
            problem, method, budget, seed, thorough=thorough, training=Options.of(**own)
        )
        found[config.identity] = config
    return list(found.values())


def synthetic_results(*names, failed=(), thorough=False, **options):
    """All tables as :func:`prudent.experiments.load_results` gives them, without a directory.

    Args:
        *names: Problems, methods, budgets and seeds; see :func:`grid`.
        failed: Pairs of (a dictionary of config fields, a reason): runs with these fields failed.
        thorough: With ranks and draws.
        **options: See :func:`grid`.
    """
    tables = {"runs": [], **{name: [] for name in TABLES}}
    for config in grid(*names, thorough=thorough, **options):
        flat = config.flat()
        del flat["format"]
        facts = {"run": config.identity, **{name: flat.pop(name) for name in KEYS[1:]}}
        place = {"error": None, "path": f"runs/{config.identity}"}
        reason = _failure(config, failed)
        if reason is not None:
            place["error"] = reason
            tables["runs"].append({**facts, "state": "failed", **flat, **place})
            continue
        made = _make(config)
        seconds = {f"{name}_seconds": value for name, value in made["seconds"].items()}
        # The metrics say by which method coverage was computed; here that is the one trained.
        row = {**flat, **made["metrics"], **facts, "state": "done", **seconds, **place}
        tables["runs"].append({name: row[name] for name in (*KEYS, *row)})
        for name, table in (("curves", made["curve"]), ("history", made["history"])):
            tables[name] += [{**facts, **line} for line in table]
        if thorough:
            tables["ranks"] += [{**facts, **line} for line in _ranks(config)]
            tables["draws"] += [{**facts, **line} for line in _draws(config)]
    frames = {
        name: pd.DataFrame(rows) if rows else pd.DataFrame(columns=[*KEYS, *TABLES.get(name, ())])
        for name, rows in tables.items()
    }
    return Results(**frames)


def empty_results():
    """Tables without rows."""
    frames = {name: pd.DataFrame(columns=[*KEYS, *rest]) for name, rest in TABLES.items()}
    return Results(**{"runs": pd.DataFrame(columns=[*KEYS, "state", "error"]), **frames})


def write_store(root, *names, failed=(), **options):
    """The same as run directories on disk; the root comes back.

    Args:
        root: The directory, made if it is missing.
        *names: See :func:`grid`.
        failed: See :func:`synthetic_results`.
        **options: See :func:`grid`.
    """
    root.mkdir(parents=True, exist_ok=True)
    # A test loses nothing if the power goes, and waiting for the disk takes most of the time.
    with mock.patch("os.fsync"):
        for config in grid(*names, **options):
            reason = _failure(config, failed)
            if reason is None:
                _publish(root / config.identity, config)
            else:
                write_failure(root, config, reason)
    return root


def write_failure(root, config, reason):
    """A run that failed."""
    store.record_failure(config, root / config.identity, reason, "Traceback: none, by formula")


def _publish(path, config):
    made = _make(config)
    curve = {name: [line[name] for line in made["curve"]] for name in made["curve"][0]}
    curve = {"levels": curve["level"], "curve": curve["coverage"], **curve}
    del curve["level"], curve["coverage"]
    epochs = config.training.epochs
    timing = {
        "seconds": made["seconds"],
        "epoch_seconds": [round(made["seconds"]["train"] / epochs, 4)] * epochs,
        "versions": {"prudent": "0.0", "torch": "0.0", "python": "3.11"},
    }
    files = {
        "config.json": to_json(config.to_dict()),
        "coverage.json": to_json(curve),
        "history.jsonl": History(made["history"]).to_jsonl(times=False).encode(),
        "model.safetensors": b"",
    }
    if config.thorough:
        ranks, draws = _columns(_ranks(config), RANKS), _columns(_draws(config), DRAWS)
        tests = {row["test"]: [] for row in ranks}
        for row in ranks:
            tests[row.pop("test")].append(row)
        files["thorough.json"] = to_json({"diagnostics": tests, "draws": draws})
    store.publish(path, files, made["metrics"], timing)


def _columns(rows, plural):
    """Rows with the same text become one, its numbers in lists, as ``thorough.json`` has them."""
    facts = [name for name in rows[0] if name not in (*plural, "draw")]
    groups = groupby(rows, key=lambda row: [row[name] for name in facts])
    return [
        dict(zip(facts, values, strict=True))
        | {plural[name]: [row[name] for row in lines] for name in plural}
        for values, lines in ((values, list(group)) for values, group in groups)
    ]


def _failure(config, failed):
    values = config.flat()
    for fields, reason in failed:
        if all(values[name] == value for name, value in fields.items()):
            return reason
    return None


def _generator(config, purpose):
    # Not by identity, which is another one whenever a run gets a new setting.
    text = f"{config} {config.training.weight} {config.training.num_samples} {purpose}"
    return np.random.default_rng(zlib.crc32(text.encode()))


def _shape(config):
    """The power of the coverage curve, and the information gain."""
    rng = _generator(config, "shape")
    method = registry.get(config.method)
    hard = 0.6 + (zlib.crc32(config.problem.encode()) % 100) / 200
    scarce = (512 / config.budget) ** 0.3
    weight = method.weights(config.training.weight).get(method.regularizer, 0.0)
    strength = math.log1p(weight) / math.log1p(method.weight) if weight else 0.0
    full = {"nre": 0.9, "npe": 1.3}[method.family] * hard * scarce
    relief = {None: 0.0, "balance": 1.1, "coverage": 1.6}[method.regularizer] * strength
    blur = 1 + 0.3 / math.sqrt(config.training.num_samples)
    log_power = full * (1 - relief * blur) + 0.08 * rng.standard_normal()
    gain = (3.2 + hard) * (1 - 0.55 * scarce) - 0.35 * relief * blur * scarce
    return math.exp(log_power), gain + 0.1 * rng.standard_normal()


def _make(config):
    power, gain = _shape(config)
    coverage = LEVELS**power
    half = 1.96 * np.sqrt(coverage * (1 - coverage) / config.num_test)
    excess = coverage - LEVELS
    log_prior = -math.log(4 + zlib.crc32(config.problem.encode()) % 40)
    dim = len(_names(config))
    metrics = {
        "auc": excess.mean(),
        "auc_error": 0.28 / math.sqrt(config.num_test),
        "calibration_error": np.abs(excess).mean(),
        "conservativeness_error": np.maximum(-excess, 0).mean(),
        "worst_shortfall": max(0.0, -excess.min()),
        "worst_excess": max(0.0, excess.max()),
        "shortfall_bound": Curve.of(LEVELS, coverage, config.num_test).most_short,
        "log_posterior": log_prior + gain,
        "log_posterior_error": 1.2 / math.sqrt(config.num_test),
        "log_posterior_finite": log_prior + gain,
        "log_prior": log_prior,
        "information_gain": gain,
        "information_gain_error": 1.1 / math.sqrt(config.num_test),
        "log_normalization": None if config.method.endswith("npe") else 0.01,
        "log_normalization_error": None if config.method.endswith("npe") else 0.002,
        "leakage": 0.004 if config.method.endswith("npe") else 0.0,
        "region_volume": 0.9 * math.exp(-gain) * 0.9**power,
        "posterior_bias": [0.01] * dim,
        "posterior_bias_error": [0.01] * dim,
        "posterior_variance": [0.2] * dim,
        "effective_size": 812.0,
        "num_unresolved": 0,
        "num_pairs": config.num_test,
        "num_invalid": 0,
        "num_zero_density": 0,
        "num_excluded": 0,
        "computed_by": "grid",
        "num_simulations_excluded": 0,
    }
    plain = {k: float(v) if isinstance(v, np.floating) else v for k, v in metrics.items()}
    curve = [
        {"level": float(level), "coverage": float(value), "lower": low, "upper": high}
        for level, value, low, high in zip(
            LEVELS,
            coverage,
            np.clip(coverage - half, 0, 1).tolist(),
            np.clip(coverage + half, 0, 1).tolist(),
            strict=True,
        )
    ]
    return {
        "metrics": plain,
        "curve": curve,
        "history": _history(config, -gain),
        "seconds": _seconds(config),
    }


def _seconds(config):
    method = registry.get(config.method)
    rng = _generator(config, "seconds")
    epoch = {"nre": 0.4, "npe": 1.5}[method.family] * config.budget / 1024
    epoch *= {None: 1.0, "balance": 1.1}.get(method.regularizer, 0.0) or (
        1.2 + 0.06 * config.training.num_samples
    )
    epoch *= 1 + 0.05 * rng.standard_normal()
    train = round(epoch * config.training.epochs, 3)
    return {"simulate": 0.2, "train": train, "diagnose": 3.1}


def _history(config, floor):
    rng = _generator(config, "history")
    regularizer = registry.get(config.method).regularizer
    rows, best = [], math.inf
    for epoch in range(1, config.training.epochs + 1):
        decay = math.exp(-4 * epoch / config.training.epochs)
        loss = floor + 2 * decay + 0.02 * rng.standard_normal()
        held_out = floor + 0.1 + 2 * decay + 0.3 * (1 - decay) ** 6 + 0.03 * rng.standard_normal()
        row = {"member": 0, "epoch": epoch, "loss": loss, "validation_loss": held_out}
        row |= {"learning_rate": 1e-3 if epoch < 15 else 1e-4, "gradient_norm": 0.5 + decay}
        if regularizer:
            row |= {regularizer: 0.05 * decay, f"validation_{regularizer}": 0.06 * decay}
        row["selected"] = held_out < best
        best = min(best, held_out)
        rows.append(row)
    return rows


def _names(config):
    return PARAMETERS.get(config.problem, ("theta_1", "theta_2"))


def _ranks(config):
    """Real tests of made-up ranks: the first parameter has the wrong width, the third a shift."""
    rng, power, names = _generator(config, "ranks"), _shape(config)[0], _names(config)
    width = np.where(np.arange(len(names)) == 0, 1 / power, 1.0)[:, None]
    shift = np.where(np.arange(len(names)) == 2, 0.2, 0.0)[:, None]
    truth = torch.from_numpy((rng.standard_normal((len(names), 400)) - shift) / width)
    balls = torch.from_numpy(rng.random((1, 400)) ** (1 / power))
    shares = torch.cat((torch.special.ndtr(truth), balls))
    ranks = Ranks((*names, TARP_DISTANCE), (50 * shares).long().clip(max=49), 49, {}, 0.0, 0.0)
    found = [("sbc", row) for row in sbc(ranks).rows()]
    found += [("tarp", row) for row in tarp(ranks).rows()]
    return [
        {"test": test, "parameter": row["parameter"], **dict(zip(RANKS, line, strict=True))}
        | {"p_value": row["p_value"]}
        for test, row in found
        for line in zip(*(row[name] for name in RANKS), strict=True)
    ]


def _draws(config):
    rng = _generator(config, "draws")
    names = _names(config)
    power = _shape(config)[0]
    truth = np.linspace(-0.5, 0.5, len(names))
    mix = np.eye(len(names)) + 0.4 * np.tri(len(names), k=-1)
    spread = {"posterior": 0.5 / power, "exact": 0.5}
    drawn = {
        kind: truth + 0.1 + width * rng.standard_normal((1000, len(names))) @ mix.T
        for kind, width in spread.items()
    }
    return [
        {"kind": kind, "draw": draw, "parameter": name, "value": value}
        for kind, values in {"truth": truth[None], **drawn}.items()
        for name, column in zip(names, values.T.tolist(), strict=True)
        for draw, value in enumerate(column)
    ]
