"""`python -m minillm` is `minillm`."""

from __future__ import annotations

import sys

from minillm.cli import main

if __name__ == "__main__":
    sys.exit(main())
