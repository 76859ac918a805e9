"""`imageshards verify DIR`."""

import sys

from beam_pipeline.verify.command import main

if __name__ == "__main__":
    sys.exit(main())
