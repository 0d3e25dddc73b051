"""All settings of a training, with their defaults; the same names everywhere."""

from dataclasses import dataclass, replace
from typing import Any, Self

from prudent._choices import COMPUTATIONS, DISTANCES, INDICATORS, LEVELS, POOLS, PROPOSALS, TARGETS
from prudent._settings import Setting, check, documented, setting, settings_of, to_dict
from prudent.errors import InputError, unknown_name

# Small batches make more of few pairs; with many pairs they only take time.
MANY_PAIRS, SMALL_BATCH, LARGE_BATCH = 2000, 64, 128
# The learning rate of those who have none of their own.
LEARNING_RATE = 1e-3
# The settings of the paper's text; docs/paper.md says where the authors' code differs.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "epochs": 500,
        "batch_size": 128,
        "learning_rate": LEARNING_RATE,
        "clip_norm": 1.0,
        "patience": None,
        "networks": "paper",
        "averaging": 0.0,
        "weight": None,
        "warmup_epochs": 0,
        "num_samples": 16,
        "proposal": "prior",
        "target": "conservative",
        "indicator": "density",
        "computation": "sort",
        "levels": "upper",
        "distance": "squared",
        "fraction": 1.0,
    },
    "fast": {"members": 1},
}
PRESET = Setting(
    "preset", (str, type(None)), None, "Training settings to begin from", choices=PRESETS
)
# What `fit` takes beside the options, for a name that is spelled nearly so.
OTHERS = ("embedding", "hidden", "transforms", "names", "invalid", "device", "checkpoint")


@documented
@dataclass(frozen=True)
class Options:
    """The way to train.

    None for ``patience`` means never, for other settings the method's own. Members of an ensemble
    that differ in seeds share their training pairs; with folds each of K validates on a Kth of the
    pairs and trains on the rest. From ``num_samples`` on, the
    settings are those of :class:`prudent.coverage.CoveragePenalty`; the proposal may be a torch
    distribution as well.
    """

    epochs: int = setting(500, least=1, help="Most passes over the training pairs")
    batch_size: int | None = setting(
        None, least=1, help="Pairs per step; by default 64, and 128 if there are 2,000 or more"
    )
    learning_rate: float | None = setting(
        None, above=0, help="Learning rate of AdamW, 3e-3 by default; a tenth after a plateau"
    )
    validation_fraction: float = setting(
        0.2, above=0, below=1, help="Share held out to choose the best epoch"
    )
    clip_norm: float = setting(1.0, above=0, help="Norm that longer gradients are cut to")
    averaging: float = setting(
        0.99, least=0, below=1, help="Weights are averaged over about 1 / (1 - this) steps"
    )
    patience: int | None = setting(20, least=1, help="Epochs without progress after which to stop")
    networks: str = setting("standard", choices=("standard", "paper"), help="Architecture")
    members: int | None = setting(None, least=1, help="Number of networks to average")
    ensemble: str | None = setting(
        None, choices=("seeds", "folds"), help="Members differ in seeds or in the pairs left out"
    )
    repetitions: int = setting(1, least=1, most=1, help="Times that folds are cut")
    pool: str | None = setting(None, choices=POOLS, help="The average of densities")
    recalibrate: str | None = setting(
        None, choices=("no", *TARGETS), help="Fit a temperature afterwards, for this coverage"
    )
    weight: float | None = setting(None, least=0, help="Weight of the regularizer")
    warmup_epochs: int = setting(0, least=0, most=0, help="No longer a setting: always 0")
    num_samples: int = setting(16, least=1, help="Draws that estimate the alpha of each pair")
    proposal: str | Any | None = setting(None, choices=PROPOSALS, help="Source of these draws")
    target: str | float = setting(
        "conservative", least=0, most=1, choices=TARGETS, help="Coverage to train for"
    )
    indicator: str = setting(
        "log", choices=INDICATORS[:-1], help="Compare log-densities or densities"
    )
    computation: str = setting("sort", choices=COMPUTATIONS, help="Sorted alphas or their ECDF")
    levels: str = setting(
        "upper", choices=LEVELS, help="Targets of sorted alphas, i/N or their means"
    )
    distance: str = setting("squared", choices=DISTANCES, help="Distance of alphas from uniform")
    fraction: float | None = setting(
        None, above=0, most=1, help="Share of steps with this penalty"
    )

    def __post_init__(self) -> None:
        check(self)

    def pairs_per_step(self, num_pairs: int) -> int:
        """The batch size for so many training pairs, which must be enough for it."""
        if self.batch_size is not None:
            if self.batch_size > num_pairs:
                raise InputError(
                    f"`batch_size` is {self.batch_size}, but only {num_pairs:,} pairs are left to "
                    f"train on; pass batch_size={max(1, num_pairs // 4)} or simulate more."
                )
            return self.batch_size
        return min(SMALL_BATCH if num_pairs < MANY_PAIRS else LARGE_BATCH, max(1, num_pairs))

    @classmethod
    def of(cls, preset: str | Self | None = None, **options: Any) -> Self:
        """Options from keywords and a preset, whose settings take the place of the defaults.

        The preset may be other options, too.

        >>> Options.of(epochs=5).epochs
        5
        >>> Options.of("paper", epochs=5).indicator
        'density'
        """
        for name in options:
            if name not in settings_of(Options):
                raise unknown_name("option", name, [*settings_of(Options), *OTHERS])
        if isinstance(preset, Options):
            return replace(preset, **options) if options else preset
        return cls(**{**PRESETS.get(PRESET.check(preset), {}), **options})

    def to_dict(self) -> dict[str, Any]:
        """Everything, defaults included, as JSON can hold it."""
        values = to_dict(self)
        if not isinstance(self.proposal, str | None):
            from prudent.priors.checks import to_spec

            values["proposal"] = to_spec(self.proposal) or type(self.proposal).__name__
        return values


# The settings of the coverage penalty alone, which other methods do not have.
_NAMES = list(settings_of(Options))
COVERAGE_OPTIONS = tuple(_NAMES[_NAMES.index("num_samples") :])
