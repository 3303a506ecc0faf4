"""``python -m netstack_gro``: the command ``netstack-gro``."""

import sys

from netstack_gro.cli import main

if __name__ == "__main__":
    sys.exit(main())
