"""The parts of `run.py`. The Java systems are those of `tests/interop`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
