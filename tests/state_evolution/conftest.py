"""Makes the table of independent values importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
