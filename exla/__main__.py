"""`python -m exla` is the command `exla`."""

import sys

from exla.cli import main

if __name__ == "__main__":
    sys.exit(main())
