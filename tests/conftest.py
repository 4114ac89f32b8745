"""What every test needs: the command line writes as wide as it does into a pipe."""

from __future__ import annotations

import os

# pytest-xdist gives its workers the width of the terminal it was started in.
os.environ.pop("COLUMNS", None)
