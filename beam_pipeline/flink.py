"""`python -m beam_pipeline.flink`: fetches Beam's job server for a version of Flink."""

from __future__ import annotations

import sys

from beam_pipeline.runners.job_server import main

if __name__ == "__main__":
    sys.exit(main())
