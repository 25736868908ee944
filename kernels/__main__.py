"""`python -m kernels check`."""

import sys

from kernels.check.command import main

if __name__ == "__main__":
    if sys.argv[1:2] != ["check"]:
        sys.exit("usage: python -m kernels check [--help]")
    sys.exit(main(sys.argv[2:]))
