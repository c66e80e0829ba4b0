"""``python -m tpunb``: the command line."""

import sys

from tpunb.cli import main

if __name__ == "__main__":
    sys.exit(main())
