"""Makes the shared test tools importable as ``from faults import ...``."""

import sys
from pathlib import Path

if (directory := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, directory)
