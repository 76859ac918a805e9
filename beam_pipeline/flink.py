"""`python -m beam_pipeline.flink`: fetches Beam's job server for a version of Flink."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from apache_beam.options.pipeline_options import FlinkRunnerOptions, PipelineOptions

from beam_pipeline.runners import job_server
from imageshards.commands import command_line


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    versions = FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS
    parser = argparse.ArgumentParser(
        prog="python -m beam_pipeline.flink", description="Fetches Beam's job server for Flink."
    )
    parser.add_argument("--flink_version", choices=versions, default=versions[-1])
    parser.add_argument("--jar_cache_dir", help="folder for it (default: Beam's own)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the path of the job server's jar; 2, and one sentence, when it cannot be had."""
    args = make_parser().parse_args(argv)
    given = [f"--{name}={value}" for name, value in vars(args).items() if value]

    def body() -> int:
        print(job_server.find_jar(PipelineOptions(given)))
        return 0

    return command_line.run("python -m beam_pipeline.flink", body)


if __name__ == "__main__":
    sys.exit(main())
