"""Runs a job that was submitted to the stand-in for Dataflow, as a worker of it would.

`python tests/support/dataflow_job.py FOLDER`, with the job's description in FOLDER/job.json. Code
and graph are taken from the staging folder that the description names; they run in this process.
"""

import hashlib
import importlib
import json
import pathlib
import sys
import tarfile
from typing import Any


def fetch(path: str) -> bytes:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    bucket, _, name = path.removeprefix("gs://").partition("/")
    client = storage.Client("none", AnonymousCredentials())
    return bytes(client.bucket(bucket).blob(name).download_as_bytes())


def install(environment: Any, folder: pathlib.Path) -> list[str]:
    """Unpacks the packages of an environment and puts them before all others; their names."""
    from apache_beam.portability.api import beam_runner_api_pb2

    names = []
    for artifact in environment.dependencies:
        payload = beam_runner_api_pb2.ArtifactUrlPayload.FromString(artifact.type_payload)
        data = fetch(payload.url)
        if hashlib.sha256(data).hexdigest() != payload.sha256:
            raise ValueError("a staged file is not what the graph says it is")
        role = beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(artifact.role_payload)
        names.append(role.staged_name)
        (folder / role.staged_name).write_bytes(data)
        if role.staged_name.endswith(".tar.gz"):
            with tarfile.open(folder / role.staged_name) as archive:
                # Python 3.11.2, of Debian 12, has no filters yet.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(folder)
                root = folder / archive.getnames()[0].split("/")[0]
            sys.path.insert(0, str(root))
    return names


def main(folder: pathlib.Path) -> None:
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.transforms import environments

    job = json.loads((folder / "job.json").read_text())
    flags = job["environment"]["sdkPipelineOptions"]["options"]
    graph = beam_runner_api_pb2.Pipeline.FromString(fetch(flags.pop("pipelineUrl")))
    flags.pop("pipelineProtoHash", None)
    # The service keeps every number as a float.
    flags = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in flags.items()}
    staged = []
    for key, environment in graph.components.environments.items():
        staged += install(environment, folder)
        here = environments.EmbeddedPythonEnvironment.default().to_runner_api(None)
        graph.components.environments[key].CopyFrom(here)
    for plugin in flags.get("beam_plugins", ()):  # modules and classes, as Beam's worker does
        try:
            importlib.import_module(plugin)
        except ImportError:
            importlib.import_module(plugin.rpartition(".")[0])
    options = PipelineOptions.from_dictionary(flags)
    FileSystems.set_options(options)
    fn_runner.FnApiRunner().run_via_runner_api(graph, options).wait_until_finish()
    import beam_pipeline

    keras = "keras" in sys.modules or "matplotlib" in sys.modules
    used = {"staged": staged, "package": beam_pipeline.__file__, "keras": keras}
    (folder / "used.json").write_text(json.dumps(used))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
