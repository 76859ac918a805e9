"""`python -m beam_pipeline.duplicates DIR`."""

from beam_pipeline.__main__ import end_now
from beam_pipeline.duplicates.command import main

if __name__ == "__main__":
    end_now(main())
