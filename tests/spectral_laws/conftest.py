"""Makes the registry importable by the tests of this folder (importlib mode leaves sys.path alone)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
