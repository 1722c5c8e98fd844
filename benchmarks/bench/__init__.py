"""What `run.py` is made of. The Java system is that of `tests/interop`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
