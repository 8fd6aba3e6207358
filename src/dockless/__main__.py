"""``python -m dockless``."""

from __future__ import annotations

import sys

from dockless.cli import main

if __name__ == "__main__":
    sys.exit(main())
