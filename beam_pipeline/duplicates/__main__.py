"""`imageshards duplicates DIR`."""

from beam_pipeline.duplicates.command import main
from imageshards.commands.command_line import end_now

if __name__ == "__main__":
    end_now(main())
