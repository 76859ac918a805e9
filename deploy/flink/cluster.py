"""`python -m deploy.flink.cluster start|stop|status`: a real Flink cluster on this host.

One JobManager, two TaskManagers, and beside each TaskManager a pool of Python workers. Every
TaskManager finds its own pool at localhost:50000, as it does where each has a host to itself:
to the second one's Java, localhost is 127.0.0.2. They must not share a pool, because Flink's
TaskManagers give their workers the same names and would stop each other's.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from beam_pipeline.runners import flink, job_server
from deploy.flink.flink_home import VERSION, flink_home
from imageshards.errors import UserError
from scripts import background
from scripts.background import Program

START_TIMEOUT_SEC = 180.0
_LOG_LINES = 15
# What every TaskManager calls 127.0.0.1.
_HOST_NAME = "flink-host"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What a cluster on this host is made of.

    Attributes:
        home: Flink distribution; None to make one from PyPI's wheels.
        folder: Logs, and which processes run.
        task_managers: Number of TaskManagers, each with a pool.
        slots: Task slots of each.
        rest_port, rpc_port: Ports of the JobManager.
        pool_port: Port of every pool, on 127.0.0.1, 127.0.0.2, …
        memory_mb: Of a TaskManager's Java process; its Python workers come on top.
    """

    home: str | None
    folder: pathlib.Path
    task_managers: int = 2
    slots: int = 1
    rest_port: int = 8081
    rpc_port: int = 6123
    pool_port: int = 50000
    memory_mb: int = 2048

    @property
    def master(self) -> str:
        """What `--flink_master` is given."""
        return f"localhost:{self.rest_port}"

    def pool_host(self, number: int) -> str:
        """Address of the pool, and of "localhost" to the Java, of a TaskManager."""
        return f"127.0.0.{number + 1}"


def start(cluster: Cluster) -> None:
    """Starts the cluster, unless it runs; returns when it is ready for a job.

    Raises:
        UserError: It cannot be started; nothing is left running.
    """
    running = background.programs(cluster.folder)
    if running and all(each.process() for each in running) and not _problem(cluster):
        return
    stop(cluster)
    _check(cluster)
    home = flink_home(cluster.home)
    cluster.folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, command, extra in commands(cluster, home):
            Program(name, cluster.folder).start(command, extra)
        _wait(cluster)
    except BaseException:
        stop(cluster)
        raise


def _check(cluster: Cluster) -> None:
    job_server.check_java("java")
    if shutil.which("bash") is None:
        raise UserError("Flink's scripts need bash, which is not here; install it.")
    wanted = [("127.0.0.1", port) for port in (cluster.rest_port, cluster.rpc_port)]
    wanted += [(cluster.pool_host(i), cluster.pool_port) for i in range(cluster.task_managers)]
    for host, port in wanted:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as e:
                raise UserError(
                    f"port {port} of {host} is in use by another program ({e.strerror}); stop it, "
                    "or choose others by --rest_port, --rpc_port or --pool_port."
                ) from e


def commands(cluster: Cluster, home: pathlib.Path) -> list[tuple[str, list[str], dict[str, str]]]:
    """(name, command, environment) of every process, in the order they are started."""
    found: list[tuple[str, list[str], dict[str, str]]] = []
    here = {
        "FLINK_LOG_DIR": str(cluster.folder),
        # Not among ours.
        "FLINK_PID_DIR": str(cluster.folder / "flink"),
        # What the distribution's own environment would add to ours.
        "FLINK_IDENT_STRING": f"imageshards-{cluster.rest_port}",
    }
    for i in range(cluster.task_managers):
        pool = [
            sys.executable, "-m", "beam_pipeline.worker_pool",
            "--host", cluster.pool_host(i), "--service_port", str(cluster.pool_port),
        ]  # fmt: skip
        found.append((f"pool-{i}", pool, {}))
    shared = _settings({
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": cluster.rpc_port,
        "rest.address": "127.0.0.1",
        "rest.port": cluster.rest_port,
    })  # fmt: skip
    job_manager = _settings({
        "jobmanager.bind-host": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.bind-port": cluster.rest_port,
        "jobmanager.memory.process.size": "1024m",
    })  # fmt: skip
    script = str(home / "bin" / "jobmanager.sh")
    found.append(("jobmanager", [script, "start-foreground", *shared, *job_manager], here))
    for i in range(cluster.task_managers):
        script = str(home / "bin" / "taskmanager.sh")
        settings = _settings(_task_manager(cluster, i))
        extra = here | {"JVM_ARGS": f"-Djdk.net.hosts.file={_hosts_file(cluster, i)}"}
        name = f"taskmanager-{i}"
        found.append((name, [script, "start-foreground", *shared, *settings], extra))
    return found


def _settings(values: dict[str, object]) -> list[str]:
    return [part for key, value in values.items() for part in ("-D", f"{key}={value}")]


def _task_manager(cluster: Cluster, number: int) -> dict[str, object]:
    return {
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.resource-id": f"taskmanager-{number}",
        "taskmanager.numberOfTaskSlots": cluster.slots,
        "taskmanager.memory.process.size": f"{cluster.memory_mb}m",
        # Every job brings Beam's classes, 150 MB of them, and not all leave with it.
        "taskmanager.memory.jvm-metaspace.size": "512m",
        # Flink 1.x sorts groups in it; without it a job fails ("Too little memory").
        "taskmanager.memory.managed.fraction": "0.2",
        # Every exchange of every step has buffers for every pair of tasks.
        "taskmanager.memory.network.fraction": "0.2",
    }


def _hosts_file(cluster: Cluster, number: int) -> pathlib.Path:
    path = cluster.folder / f"taskmanager-{number}.hosts"
    # Flink asks for the name of 127.0.0.1, then for the address of that: it must lead back there.
    names = [_HOST_NAME, *sorted({socket.gethostname(), socket.getfqdn()} - {"localhost"})]
    own = "".join(f"127.0.0.1 {name}\n" for name in names)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{cluster.pool_host(number)} localhost\n{own}", encoding="utf-8")
    return path


def _wait(cluster: Cluster) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SEC
    while problem := _problem(cluster):
        dead = [each for each in background.programs(cluster.folder) if not each.process()]
        if dead or time.monotonic() > deadline:
            shown = dead[0] if dead else Program("jobmanager", cluster.folder)
            print(shown.last_lines(_LOG_LINES), file=sys.stderr)
            ended = f"{shown.name} ended" if dead else f"not ready within {START_TIMEOUT_SEC:g} s"
            raise UserError(
                f"the Flink cluster did not start ({ended}: {problem}); see the last lines above "
                f"and the logs in {cluster.folder}."
            )
        time.sleep(0.3)


def _problem(cluster: Cluster) -> str:
    """What keeps the cluster from taking a job; "" for nothing."""
    for i in range(cluster.task_managers):
        try:
            socket.create_connection((cluster.pool_host(i), cluster.pool_port), 2).close()
        except OSError as e:
            return f"the pool at {cluster.pool_host(i)}:{cluster.pool_port} does not answer ({e})"
    try:
        found = flink.overview(f"127.0.0.1:{cluster.rest_port}")
    except UserError as e:
        return str(e)
    if found.slots < cluster.task_managers * cluster.slots:
        return f"{found.task_managers} of {cluster.task_managers} TaskManagers have registered"
    return ""


def stop(cluster: Cluster) -> int:
    """Ends what `start` began and what it began in turn; returns how many processes."""
    return background.stop(background.programs(cluster.folder))


def status(cluster: Cluster) -> str:
    """One line for every process, and one for the cluster."""
    lines = []
    for each in background.programs(cluster.folder):
        found = each.process()
        lines.append(f"{each.name:15} {f'process {found.pid} runs' if found else 'has ended'}")
    problem = _problem(cluster) if lines else "it was not started"
    return "\n".join([*lines, f"not ready: {problem}" if problem else "ready for jobs"])


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.flink.cluster", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("action", choices=("start", "stop", "status"))
    parser.add_argument(
        "--flink_home",
        default=os.environ.get("FLINK_HOME"),
        help=f"Flink distribution (default: $FLINK_HOME, else {VERSION} from PyPI's wheels)",
    )
    parser.add_argument(
        "--folder",
        type=pathlib.Path,
        default=background.cache_folder() / "flink-cluster",
        help="logs and process numbers (default: %(default)s)",
    )
    parser.add_argument("--task_managers", type=int, default=2, help="(default: %(default)s)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--slots",
        type=int,
        default=max(1, cores // 2),
        help="task slots of each TaskManager (default: half of the cores)",
    )
    for name, default in (("rest", 8081), ("rpc", 6123), ("pool", 50000)):
        parser.add_argument(f"--{name}_port", type=int, default=default, help="%(default)s")
    parser.add_argument(
        "--memory_mb",
        type=int,
        default=2048,
        help="MB of each TaskManager's Java; Python workers come on top (default: %(default)s)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Starts, stops or shows the cluster; 2 for a mistake, said in one sentence."""
    args = make_parser().parse_args(argv)
    fields = {key: value for key, value in vars(args).items() if key != "action"}
    cluster = Cluster(home=fields.pop("flink_home"), **fields)
    try:
        if args.action == "start":
            start(cluster)
            print(status(cluster))
            print(
                "use it with: imageshards build … --runner FlinkRunner "
                f"--flink_master {cluster.master}"
                + ("" if cluster.pool_port == 50000 else
                   f" --environment_config localhost:{cluster.pool_port}")
            )  # fmt: skip
        elif args.action == "stop":
            ended = stop(cluster)
            print(f"{ended} processes ended" if ended else "nothing was running")
        else:
            print(status(cluster))
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except subprocess.SubprocessError as e:
        print(f"error: a process could not be started ({e}).", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
