"""Trains on two hosts that are processes here, kills one, restarts, and compares the weights.

python -m scripts.cluster_demo --data demo_output/shards --output demo_output/cluster
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from scripts.local_hosts import free_addresses, host_environment

FLAGS = ("--epochs", "2", "--batch_size", "32", "--seed", "1", "--checkpoint_steps", "5")
KILLED_AFTER = "step-00000005"
TIMEOUT_SEC = 600


def start_hosts(count: int, *flags: str) -> list[subprocess.Popen[str]]:
    """So many hosts of one cluster, each a process with its own TF_CONFIG."""
    addresses = free_addresses(count)
    hosts = []
    for index in range(count):
        command = [sys.executable, "-m", "trainer", "--cluster", "tf_config", *FLAGS, *flags]
        environment = {**os.environ, **host_environment(addresses, index)}
        hosts.append(
            subprocess.Popen(
                command, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    return hosts


def finished(hosts: Sequence[subprocess.Popen[str]]) -> list[int]:
    """Exit codes, after what each host has said."""
    codes = []
    for index, host in enumerate(hosts):
        said = host.communicate(timeout=TIMEOUT_SEC)[0].strip()
        name = "chief " if index == 0 else f"host {index}"
        for line in said.splitlines():
            print(f"  {name} | {line}")
        print(f"  {name} | exit code {host.returncode}", flush=True)
        codes.append(host.returncode)
    return codes


def digest(output: pathlib.Path) -> str:
    """SHA-256 of a trained model's weights."""
    return (output / "weights.sha256").read_text(encoding="utf-8").split()[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demonstration; 0 where the weights are equal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="a data set")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="replaced")
    args = parser.parse_args(argv)
    one, two = args.output / "one-process", args.output / "two-hosts"
    shutil.rmtree(args.output, ignore_errors=True)
    print("1. One process with two replicas", flush=True)
    command = [sys.executable, "-m", "trainer", *FLAGS, "--replicas", "2"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(
        [*command, "--data", args.data, "--output", str(one)],
        env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    flags = ("--data", args.data, "--output", str(two))
    print("2. Two hosts; the second is killed (SIGKILL) after the first checkpoint", flush=True)
    hosts = start_hosts(2, *flags)
    deadline = time.monotonic() + TIMEOUT_SEC
    while not (two / "checkpoints" / KILLED_AFTER / "state.json").exists():
        if time.monotonic() > deadline or any(host.poll() is not None for host in hosts):
            finished(hosts)
            print("no checkpoint was written", file=sys.stderr)
            return 1
        time.sleep(0.01)
    hosts[1].send_signal(signal.SIGKILL)
    if finished(hosts)[0] != 1:
        print("the chief did not end as one that has lost a host", file=sys.stderr)
        return 1
    print("3. The same command on both again", flush=True)
    if finished(start_hosts(2, *flags)) != [0, 0]:
        return 1
    print(f"weights of one process  {digest(one)}\nweights of two hosts    {digest(two)}")
    if digest(one) != digest(two):
        print("they differ", file=sys.stderr)
        return 1
    print("equal to the last bit")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
