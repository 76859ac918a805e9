"""A stand-in for the Dataflow service on this machine: takes jobs, and runs what was staged.

It answers what Beam's client and our preflight ask of the service. A job that was submitted
is run by `tests/support/dataflow_job.py` in a process of its own, from nothing but what the client
left in the staging folder. It proves the submission and the graph, and nothing of Google's.
"""

import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from tests.support.http_stand_in import HttpStandIn, Reply, Request, json_reply
from tests.support.portable_servers import NO_FREEZE

_RUN_JOB = pathlib.Path(__file__).with_name("dataflow_job.py")
PROJECT, REGION = "my-project", "europe-west4"


class StandIn(HttpStandIn):
    """The service, while it is entered; `jobs` has each job by its id, as the service shows it."""

    def __init__(self, folder: pathlib.Path, environ: Mapping[str, str]):
        super().__init__()
        self.jobs: dict[str, dict[str, Any]] = {}
        self._folder, self._environ = folder, environ
        self._ending: tuple[str, str] | None = None
        self._messages: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen] = {}

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(20)
        super().__exit__(*error)

    @property
    def flags(self) -> list[str]:
        return [  # a number for the host would mean Google's service
            "--runner", "DataflowRunner", "--project", PROJECT, "--region", REGION,
            "--dataflow_endpoint", f"http://localhost:{self.port}", "--no_auth", NO_FREEZE,
        ]  # fmt: skip

    def end_jobs(self, state: str, message: str = "") -> None:
        """Jobs are not run: they have this state, and a message, as soon as they were accepted."""
        self._ending = (state, message)

    def answer(self, request: Request) -> Reply:
        reply = self._answer(request.command, request.path, json.loads(request.body or b"null"))
        if reply is None:
            return json_reply({"error": {"code": 404, "message": request.path}}, 404)
        said = json_reply(reply)
        return said._replace(headers={**(said.headers or {}), "Metadata-Flavor": "Google"})

    def _answer(self, method: str, url: str, body: Any) -> Any:
        path = url.partition("?")[0]
        if path.startswith("/computeMetadata/"):
            return _metadata(path)
        head, _, rest = path.partition("/jobs")
        if head != f"/v1b3/projects/{PROJECT}/locations/{REGION}":
            return None
        job_id, _, what = rest.strip("/").partition("/")
        if method == "POST":
            return self._create(body)
        if not job_id:
            return {"jobs": []}  # with the name of the new one
        if method == "PUT":
            return self._request_state(job_id, body["requestedState"])
        if what == "messages":
            return {"jobMessages": self._told(job_id)}
        return {"metrics": []} if what == "metrics" else self.jobs[job_id]

    def _create(self, job: dict[str, Any]) -> dict[str, Any]:
        job_id = f"2026-11-21_{len(self.jobs)}"
        self.jobs[job_id] = job | {"id": job_id, "currentState": "JOB_STATE_RUNNING"}
        self._messages[job_id] = []
        accepted = dict(self.jobs[job_id])
        if self._ending is None:
            threading.Thread(target=self._run, args=(job_id,), daemon=True).start()
        else:
            self.jobs[job_id]["currentState"] = f"JOB_STATE_{self._ending[0]}"
            self._messages[job_id].append(self._ending[1])
        return accepted

    def _run(self, job_id: str) -> None:
        folder = self._folder / job_id
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(json.dumps(self.jobs[job_id]))
        # Neither this checkout nor this test's folder: a worker has what was staged.
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        # Its machine answers for its credentials, as every machine of Google's does.
        here = f"localhost:{self.port}"
        environ |= {**self._environ, "GCE_METADATA_HOST": here, "GCE_METADATA_IP": here}
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", str(_RUN_JOB), str(folder)], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd=folder, env=environ,
            )  # fmt: skip
            self._processes[job_id] = process
            failed = process.wait() != 0
        if failed:
            self._messages[job_id].append((folder / "log").read_text()[-8000:])
        if self.jobs[job_id]["currentState"] == "JOB_STATE_RUNNING":
            self.jobs[job_id]["currentState"] = f"JOB_STATE_{'FAILED' if failed else 'DONE'}"

    def _request_state(self, job_id: str, state: str | int) -> dict[str, Any]:
        # Beam's client sends numbers for names.
        cancelled = state in (5, "JOB_STATE_CANCELLED")
        self.jobs[job_id]["currentState"] = "JOB_STATE_CANCELLED" if cancelled else str(state)
        if job_id in self._processes:
            self._processes[job_id].kill()
        return self.jobs[job_id]

    def _told(self, job_id: str) -> list[dict[str, str]]:
        told = {"time": "2026-11-21T12:00:00Z", "messageImportance": "JOB_MESSAGE_ERROR"}
        messages = enumerate(self._messages[job_id])
        return [told | {"id": str(number), "messageText": text} for number, text in messages]


def _metadata(path: str) -> Any:
    """What a machine of Google's is told about the account it runs as."""
    if path.endswith("/token"):
        return {"access_token": "a token", "expires_in": 3600, "token_type": "Bearer"}
    return {"email": "worker@example.com", "scopes": [], "aliases": ["default"]}
