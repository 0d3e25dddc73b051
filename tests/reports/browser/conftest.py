"""Makes the stores beside this directory importable, also if only these tests are run."""

import sys
from pathlib import Path

if (directory := str(Path(__file__).parents[1])) not in sys.path:
    sys.path.insert(0, directory)
