"""One line for a model of another library: what it is, is seen by its class alone.

No library is imported that the model does not come from.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import nn

from prudent.adapters.estimator import Adapted
from prudent.adapters.model import Model
from prudent.errors import InputError
from prudent.priors.given import as_prior


class _Kind(NamedTuple):
    """A class of another library, and the function of our module for that library that reads it.

    ``takes`` are the arguments of :func:`adapt` that the function knows. Where there is no
    function, ``instead`` is what to pass in place of such an object.
    """

    library: str
    name: str
    function: str
    takes: tuple[str, ...] = ()
    instead: str = ""


# A class comes before those that it inherits from.
KINDS = (
    _Kind("sbi", "NeuralPosterior", "posterior_of", ("prior",)),
    _Kind("sbi", "ConditionalDensityEstimator", "density_of"),
    _Kind("sbi", "RatioEstimator", "ratio_of"),
    _Kind("sbi", "ConditionalVectorFieldEstimator", "", (), "what `build_posterior()` returns"),
    _Kind("sbi", "NeuralInference", "", (), "what its `build_posterior()` returns"),
    _Kind("lampe", "NPE", "model_of", ("embedding",)),
    _Kind("lampe", "FMPE", "model_of", ("embedding",)),
    _Kind("lampe", "NRE", "model_of", ("embedding",)),
    _Kind("zuko", "LazyDistribution", "model_of", ("embedding",)),
    _Kind("nflows", "Flow", "model_of", ("embedding",)),
    _Kind("bayesflow", "Approximator", "model_of", ("keys",)),
    _Kind("bayesflow", "BasicWorkflow", "model_of", ("keys",)),
)
EXPECTED = (
    "a posterior or trained estimator of sbi, an NPE, NRE, AMNRE or FMPE of lampe, a lazy "
    "distribution of zuko, a flow of nflows, an approximator of BayesFlow, or functions: "
    "prudent.adapt(prior=prior, log_prob=..., sample=...)"
)


def adapt(
    model: Any = None,
    prior: Any = None,
    *,
    log_prob: Callable[[Any, Any], Any] | None = None,
    sample: Callable[[int, Any], Any] | None = None,
    normalized: bool = True,
    embedding: Any = None,
    x_shape: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    keys: tuple[str | Sequence[str], str] | None = None,
) -> Any:
    """Make an estimator of a model of another library, or of functions.

    The estimator can be diagnosed, recalibrated and asked for posteriors like our own; what a
    model cannot do is in its ``abilities``. Networks are put into evaluation mode; ``train()`` of
    the estimator puts them back, for a loss in a loop of your own.

    Args:
        model: A posterior or trained estimator of sbi; an ``NPE``, ``NRE``, ``AMNRE`` or ``FMPE``
            of lampe; a lazy distribution of zuko; a flow of nflows; an approximator of BayesFlow;
            or an object with ``log_prob(theta, x)``, ``sample(n, x)`` or both.
        prior: The distribution of theta in the simulations, as :func:`prudent.fit` takes it; a
            posterior of sbi has its own.
        log_prob: A function of theta (L, N, D) and x (N, ...) with log-densities (L, N).
        sample: A function of a number L and x (N, ...) with draws (L, N, D).
        normalized: Whether ``log_prob`` is normalized; if not, draws are made from it here.
        embedding: The network that makes the model's x of observations, for lampe, zuko, nflows.
        x_shape: The shape of one observation, if it is no vector and the model does not know it.
        names: The names of the parameters.
        keys: For BayesFlow, the names of theta, or of its parts, and of x in its data.

    Returns:
        An :class:`prudent.adapters.Adapted`; an estimator of prudent comes back as it is.

    >>> import prudent, torch
    >>> problem = prudent.problems.get("gaussian")
    >>> def log_prob(theta, x):
    ...     return -((theta - x) ** 2).sum(-1)
    >>> adapt(prior=problem.prior, log_prob=log_prob, normalized=False)(torch.zeros(3, 2))
    <Posterior of 3 observations, 2 parameters>
    """
    if callable(model) and hasattr(model, "prior") and hasattr(model, "normalized"):
        return model
    functions = {"log_prob": log_prob, "sample": sample}
    options = {"prior": prior, "embedding": embedding, "keys": keys}
    found = _recognized(model, options)
    if found is None and model is not None:
        methods = {name: getattr(model, name, None) for name in functions}
        functions = {name: f if _takes_two(f) else None for name, f in methods.items()}
    found = found or _functions(**functions, normalized=normalized)
    if found is None:
        raise InputError(f"{_refusal(model)} Expected {EXPECTED}.")
    prior = found.prior if prior is None else prior
    if prior is None:
        raise InputError(f"{found.name} has no prior; pass it: prudent.adapt(model, prior).")
    known, x_shape = as_prior(prior), found.x_shape if x_shape is None else x_shape
    return Adapted(found, known.prior, x_shape, names or known.names or None).eval()


def _recognized(model: Any, options: dict[str, Any]) -> Model | None:
    """What a model of a known class can do, None if it is of no known class."""
    classes = {(c.__module__.partition(".")[0], c.__name__) for c in type(model).__mro__}
    for kind in KINDS:
        if (kind.library, kind.name) not in classes:
            continue
        if kind.instead:
            raise InputError(f"got {_described(model)}; pass {kind.instead}.")
        given = {name: value for name, value in options.items() if value is not None}
        for name in given:
            if name not in (*kind.takes, "prior"):
                raise InputError(f"`{name}` is not for {_described(model)}; leave it out.")
        module = importlib.import_module(f"prudent.adapters.{kind.library}")
        taken = {name: value for name, value in given.items() if name in kind.takes}
        found: Model = getattr(module, kind.function)(model, **taken)
        return found
    return None


def _functions(
    log_prob: Callable[[Any, Any], Any] | None,
    sample: Callable[[int, Any], Any] | None,
    *,
    normalized: bool,
) -> Model | None:
    """What functions can do, None if there are none."""
    if log_prob is None and sample is None:
        return None
    if sample is not None and not normalized:
        raise InputError(
            "draws of a density that is not normalized are made here, by its own ratio to the "
            "prior; leave `sample` out, or `log_prob` to judge the draws alone."
        )
    owners = [getattr(function, "__self__", function) for function in (log_prob, sample)]
    networks = list(dict.fromkeys(one for one in owners if isinstance(one, nn.Module)))
    return Model("the function", log_prob, sample=sample, networks=networks)


def _takes_two(function: Any) -> bool:
    """Whether a method can be called with two arguments, theta or a number, and x."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _refusal(model: Any) -> str:
    """What is wrong with something that is no model, in a sentence."""
    if inspect.isroutine(model):
        return "got a function; say which it is: prudent.adapt(prior=prior, log_prob=function)."
    if inspect.isclass(model):
        return f"got the class {model.__name__}; pass an object of it, trained."
    lacks = "no" if model is None else "which has no"
    return f"got {_described(model)}, {lacks} `log_prob(theta, x)` and no `sample(n, x)`."


def _described(model: Any) -> str:
    kind = type(model)
    return "nothing" if model is None else f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
