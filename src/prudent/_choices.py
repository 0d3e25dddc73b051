"""The names that the settings of the coverage penalty can have.

They stand apart from the penalty because the command line lists them without importing torch.
"""

TARGETS = {"conservative": 0.0, "calibrated": 1.0}
INDICATORS = ("log", "density", "hard")  # the last has no gradient
COMPUTATIONS = ("sort", "direct")
LEVELS = ("upper", "mean")
DISTANCES = ("squared", "absolute", "supremum")
MODELS = ("model", "model-rsample", "draws")
PROPOSALS = ("even", "prior", "box", "nominal", *MODELS)
POOLS = ("mixture",)
