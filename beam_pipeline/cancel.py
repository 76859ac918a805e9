"""`imageshards cancel OUT`: ends the job that a killed client left behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from imageshards import storage
from imageshards.commands import command_line
from imageshards.commands.command_line import Parser
from imageshards.errors import UserError
from imageshards.manifest import STAGING_NAME

_TIMEOUT_SEC = 60.0


def cancel(output: str, timeout_sec: float = _TIMEOUT_SEC) -> str:
    """Ends the job that writes to `output`; returns a sentence.

    Raises:
        UserError: The job service does not answer, or the job does not end.
    """
    import grpc

    from beam_pipeline.runners import jobs

    job = jobs.noted(storage.join(output, STAGING_NAME))
    if job is None:
        return f"no job of a job service writes to {output}"
    try:
        deadline = time.monotonic() + timeout_sec
        while (state := jobs.state_of(job)) not in (None, *jobs.ENDED):
            if time.monotonic() > deadline:
                raise UserError(
                    f"job {job.job_id} at {job.endpoint} is still {state} {timeout_sec:.0f} s "
                    "after it was told to end; stop the job service."
                )
            jobs.cancel(job)
            time.sleep(0.5)
    except grpc.RpcError as e:
        raise UserError(
            f"the job service at {job.endpoint} does not answer ({jobs.error_text(e)}) for job "
            f"{job.job_id}; {jobs.unknown_job_remedy(output)}"
        ) from e
    return f"job {job.job_id} at {job.endpoint}: {state or 'not known any more'}"


def make_parser() -> Parser:
    """The parser of `imageshards cancel`."""
    parser = Parser(
        prog="imageshards cancel",
        description="Ends the job of a build on a cluster whose client was killed.",
    )
    parser.add_argument("output", metavar="DIR", help="the --output of the build")
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--check", action="store_true", help="cancel nothing; exit code 2 if a job may be running"
    )
    action.add_argument(
        "--forget", action="store_true", help="take it that the job has ended, and ask nobody"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Ends a job; returns 0, or 2 if it could not be ended."""

    def body() -> int:
        from beam_pipeline.runners import jobs

        args = make_parser().parse_args(argv)
        staging = storage.join(args.output, STAGING_NAME)
        if args.check:
            jobs.refuse_running(args.output, staging)
        elif args.forget:
            jobs.note(staging, None)
            print(f"no job is taken to write to {args.output} any more")
        else:
            print(cancel(args.output))
        return 0

    return command_line.run("imageshards cancel", body)


if __name__ == "__main__":
    sys.exit(main())
