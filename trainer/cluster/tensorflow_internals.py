"""Uses the parts of TensorFlow that TensorFlow does not promise to keep."""

from __future__ import annotations


def limit_start(hosts: int, timeout_sec: float) -> None:
    """Sets the time that TensorFlow on this host waits for the other hosts when it starts."""
    # While TensorFlow waits, no Python thread runs, so our threads cannot watch the other hosts.
    from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=1000 * int(timeout_sec),
        coordinated_jobs=[CoordinatedJob(name="worker", num_tasks=hosts)],
    )


def slurm_hosts(nodes: str, tasks_per_node: str) -> list[tuple[str, int]]:
    """Returns the name and the number of processes of each host, as Slurm abbreviates both."""
    # TensorFlow's own resolver sorts the hosts by name, so its ranks differ from those of Slurm.
    # Only its parsers are useful here.
    from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver as slurm

    counts = slurm.expand_tasks_per_node(tasks_per_node)
    return list(zip(slurm.expand_hostlist(nodes), counts, strict=True))
