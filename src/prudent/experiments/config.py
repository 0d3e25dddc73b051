"""The settings of one run: plain data, checked before anything heavy is imported."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from prudent import problems
from prudent._files import canonical_json, sha256
from prudent._settings import Setting, check, documented, made, setting, settings_of, to_dict
from prudent._tables import FORMAT, Mistakes
from prudent.errors import InputError, StoreError
from prudent.training import methods
from prudent.training.options import PRESET, PRESETS, Options

# Coverage by region takes two halves with two regions each, and a tree that finds these.
THOROUGH_PAIRS = 120
THOROUGH_NEEDS = ("sklearn", "distances", "thorough diagnoses")
# What is said of a file, which unlike a store of a known problem does not know its prior.
LACKS_PRIOR = (
    "does not say which prior its theta come from; pass --prior with a problem's name, a TOML "
    "file or module:attribute."
)


@documented
@dataclass(frozen=True)
class RunConfig:
    """One training and its diagnosis; ``training`` holds its :class:`prudent.training.Options`."""

    problem: str = setting(
        choices=problems.DESCRIPTIONS,
        others=".*:.*",
        help="The problem to simulate",
        hint="Your own: module:attribute.",
    )
    method: str = setting(choices=methods.METHODS, help="Method of estimation")
    budget: int = setting(least=2, help="Number of simulations to train and validate with")
    seed: int = setting(0, least=0, help="Seed of all random numbers")
    num_test: int = setting(2000, least=1, help="Number of test pairs, simulated apart")
    threads: int = setting(1, least=1, help="Number of CPU threads")
    device: str = setting(
        "cpu",
        choices=("cpu", "cuda", "mps"),
        others=r"(cpu|cuda|mps|xpu)(:\d+)?",
        help="Device to train on",
        hint="A graphics card is cuda, on a Mac mps.",
    )
    thorough: bool = setting(default=False, help="Also SBC, TARP and coverage by region of x")
    source: str = setting("", help="Digest of the file of a problem of one's own", hidden=True)
    data: str = setting(
        "", help="SHA-256 of the pairs, where they come from files", hidden=True, identity="if set"
    )
    prior: str = setting(
        "", help="Prior of pairs from files, as JSON", hidden=True, identity="if set"
    )
    format: int = setting(FORMAT, help="Version of prudent's runs", hidden=True)
    training: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        check(self)
        self._agree()

    def _agree(self) -> None:
        """Refuse settings that contradict each other, and fill in those of the method."""
        if self.format != FORMAT:
            raise StoreError(
                f"the run has format {self.format}, this version reads format {FORMAT}. Use the "
                "version of prudent that made it."
            )
        method = methods.get(self.method)
        object.__setattr__(self, "training", method.resolve(self.training))
        method.weights(self.training.weight)
        if self.thorough and self.num_test < THOROUGH_PAIRS:
            raise InputError(
                f"`num_test` is {self.num_test}; a thorough run needs {THOROUGH_PAIRS} or more."
            )
        if not isinstance(self.training.proposal, str):
            raise InputError("a stored run can only have a proposal with a name, such as prior.")

    @property
    def num_networks(self) -> int:
        """The number of networks to train."""
        return self.training.members or 1

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {**to_dict(self), "training": self.training.to_dict()}

    def flat(self) -> dict[str, Any]:
        """All settings in one level, those of the training beside those of the run."""
        return {**to_dict(self), **self.training.to_dict()}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> RunConfig:
        """A run from what a user wrote or was stored; all mistakes are told at once.

        Args:
            settings: The fields of this class, with those of the training in ``training``, where
                ``preset`` may give the rest.

        >>> training = {"preset": "paper", "epochs": 10}
        >>> RunConfig.from_settings(
        ...     {"problem": "slcp", "method": "nre", "budget": 512, "training": training}
        ... ).training.epochs
        10
        """
        mistakes = Mistakes()
        hidden = {k: v for k, v in settings.items() if k in HIDDEN}
        found = flatten({k: v for k, v in settings.items() if k not in HIDDEN}, mistakes)
        tell_missing(found, mistakes)
        checks = {key: one.check for key, one in {**KEYS, **HIDDEN}.items()}
        found = {k: mistakes.try_to("", checks[k], v) for k, v in {**found, **hidden}.items()}
        mistakes.refuse()
        return cls.from_flat(found)

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> RunConfig:
        """A run of checked settings, those of the training with ``training.`` before them."""
        run = nest(flat)
        training = run.pop("training", {})
        preset = PRESETS.get(training.pop("preset", None), {})
        found = made(cls, {**run, "training": made(Options, {**preset, **training})})
        found._agree()
        return found

    def changed(self, **values: Any) -> RunConfig:
        """The run with other values of some settings, which alone are checked."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        known = settings_of(RunConfig)
        found = made(RunConfig, {**own, **{k: known[k].check(v) for k, v in values.items()}})
        found._agree()
        return found

    @cached_property
    def identity(self) -> str:
        """Twelve hexadecimal digits that name the run.

        >>> RunConfig("slcp", "nre", 1024).identity == RunConfig("slcp", "nre", 1024).identity
        True
        """
        return sha256(canonical_json(self.to_dict()))[:12]

    def __str__(self) -> str:
        return f"{self.problem} {self.method} {self.budget:,} seed {self.seed}"


# Every key of a file, with a dot for those of the table [training].
KEYS = {name: one for name, one in settings_of(RunConfig).items() if not one.hidden}
HIDDEN = {name: one for name, one in settings_of(RunConfig).items() if one.hidden}
NEEDED = [name for name, one in KEYS.items() if one.default is ...]
KEYS["training.preset"] = PRESET
KEYS |= {f"training.{name}": one for name, one in settings_of(Options).items()}


def flatten(
    table: Mapping[str, Any],
    mistakes: Mistakes,
    where: str = "",
    known: Mapping[str, Setting] = KEYS,
) -> dict[str, Any]:
    """The known settings of a table in one level; other keys are mistakes of ``where + key``."""
    flat: dict[str, Any] = {}
    tables = {key.partition(".")[0] for key in known if "." in key}
    for key, value in table.items():
        if key not in tables:
            flat[key] = value
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            mistakes.add(where + key, f"expected a table of settings, got {str(value)[:40]}.")
    for key in flat:
        if key not in known:
            mistakes.add(where + key[:60], _unknown(key, known))
    return {key: value for key, value in flat.items() if key in known}


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`flatten`."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        table, _, name = key.rpartition(".")
        (nested.setdefault(table, {}) if table else nested)[name] = value
    return nested


def tell_missing(flat: Mapping[str, Any], mistakes: Mistakes, where: str = "") -> None:
    """Tell the settings that every run needs and this one does not have."""
    for name in NEEDED:
        if name not in flat:
            mistakes.add(where + name, f"missing; every run needs {', '.join(NEEDED)}.")


def _unknown(key: str, known: Mapping[str, Setting]) -> str:
    if f"training.{key}" in known:
        return "belongs in the table [training]."
    table, dot, name = key.rpartition(".")
    near = {one.name: one for other, one in known.items() if other == table + dot + one.name}
    guess = ""
    for nearest in difflib.get_close_matches(name, near, n=1, cutoff=0.5):
        default = near[nearest].default
        told = "" if default in (None, ...) else f" (default {default})"
        guess = f" Did you mean `{nearest}`{told}?"
    return f"unknown key.{guess} Known: {' '.join(near or known)}."
