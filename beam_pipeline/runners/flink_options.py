"""Flags of Beam's Flink runner that only its Java side declares.

Beam's Python client learns of them from a running job server, too late to tell a misspelled flag
from a known one. Declared here they are known to `--runner FlinkRunner` from the start; a flag
that is not given is not sent.
"""

from __future__ import annotations

from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

_NUMBERS = {
    "max_bundle_size": "elements of a bundle, at most",
    "max_bundle_time_mills": "milliseconds until a bundle is closed",
    "number_of_execution_retries": "how often Flink restarts a failed job by itself; 0 for never",
    "execution_retry_delay": "milliseconds between such restarts",
    "auto_watermark_interval": "milliseconds between watermarks",
    "job_check_interval_in_secs": "seconds between looks at a detached job",
}
_TEXTS = {
    "state_backend": "rocksdb or hashmap, where grouped references wait; needs a storage path",
    "state_backend_storage_path": "folder or URI of the state backend",
    "flink_conf_dir": "folder with a Flink configuration for this job, on the job server's host",
}
_SWITCHES = {
    "object_reuse": "reuse Java objects between operators",
    "faster_copy": "leave out deep copies between operators",
    "disable_metrics": "do without Beam's metrics",
}


class FlinkJavaOptions(PipelineOptions):
    """What `FlinkPipelineOptions` of the Java side takes and we or our users set."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        for name, text in _NUMBERS.items():
            parser.add_argument(f"--{name}", type=int, default=None, help=f"Flink: {text}.")
        for name, text in _TEXTS.items():
            parser.add_argument(f"--{name}", default=None, help=f"Flink: {text}.")
        for name, text in _SWITCHES.items():
            parser.add_argument(
                f"--{name}", action="store_true", default=None, help=f"Flink: {text}."
            )
