"""Makes the tools of these tests importable as ``from sweeping import ...``."""

import sys
from pathlib import Path

if (directory := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, directory)
