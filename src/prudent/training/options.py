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


@documented
@dataclass(frozen=True)
class Options:
    """The way to train.

    None for ``patience`` means never, for other settings the method's own. Members of an ensemble
    that differ in seeds share their training pairs; with folds each of K validates on a Kth of the
    pairs and trains on the rest, and repetitions cut other folds. From ``num_samples`` on, the
    settings are those of :class:`prudent.coverage.CoveragePenalty`; the proposal may be a torch
    distribution as well.
    """

    epochs: int = setting(500, least=1, help="Passes over the training pairs")
    batch_size: int | None = setting(
        None, least=1, help="Pairs per step; by default 64, and 128 if there are 2,000 or more"
    )
    learning_rate: float | None = setting(
        None, above=0, help="Learning rate of AdamW; by default 3e-3; a tenth after a plateau"
    )
    validation_fraction: float = setting(
        0.2, above=0, below=1, help="Share kept for selection", hint="It chooses the best epoch."
    )
    clip_norm: float = setting(1.0, above=0, help="Largest norm of a gradient")
    averaging: float = setting(
        0.99, least=0, below=1, help="Weights are averaged over about 1 / (1 - this) steps"
    )
    patience: int | None = setting(20, least=1, help="Epochs without progress after which to stop")
    networks: str = setting("standard", choices=("standard", "paper"), help="Default networks")
    members: int | None = setting(None, least=1, help="Networks to train and pool")
    ensemble: str | None = setting(
        None, choices=("seeds", "folds"), help="What makes members differ"
    )
    repetitions: int = setting(1, least=1, help="Times that folds are cut anew, with new members")
    pool: str | None = setting(None, choices=POOLS, help="What of members is averaged")
    recalibrate: str | None = setting(
        None, choices=("no", *TARGETS), help="Temperature to fit on pairs held out from training"
    )
    weight: float | None = setting(None, least=0, help="Regularizer's weight, if not the default")
    warmup_epochs: int = setting(0, least=0, help="Epochs over which the weight rises from zero")
    num_samples: int = setting(16, least=1, help="Draws per pair, L")
    proposal: str | Any | None = setting(None, choices=PROPOSALS, help="Where the draws come from")
    target: str | float = setting(
        "conservative", least=0, most=1, choices=TARGETS, help="What to strive for"
    )
    indicator: str = setting("log", choices=INDICATORS[:-1], help="Scale of densities")
    computation: str = setting("sort", choices=COMPUTATIONS, help="Way of comparison")
    levels: str = setting("upper", choices=LEVELS, help="Expected alphas")
    distance: str = setting("squared", choices=DISTANCES, help="Distance from uniform")
    fraction: float | None = setting(None, above=0, most=1, help="Share of steps with a penalty")

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
                raise unknown_name("option", name, settings_of(Options))
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
