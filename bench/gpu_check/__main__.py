"""`python -m bench.gpu_check`."""

import sys

from bench.gpu_check.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
