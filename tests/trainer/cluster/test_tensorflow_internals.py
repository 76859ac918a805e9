import inspect

import pytest

from tests.conftest import REPOSITORY
from trainer.cluster.tensorflow_internals import slurm_hosts


def test_tensorflow_has_the_private_parts_that_the_trainer_uses() -> None:
    context = pytest.importorskip("tensorflow.python.eager.context").Context
    assert slurm_hosts("a[1-2],b", "1(x2),2") == [("a1", 1), ("a2", 1), ("b", 2)]
    options = inspect.signature(context.configure_coordination_service).parameters
    used = {"service_type", "service_leader", "cluster_register_timeout_in_ms", "coordinated_jobs"}
    assert used <= options.keys()
    from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob

    assert CoordinatedJob(name="worker", num_tasks=2).num_tasks == 2


def test_only_one_module_uses_them() -> None:
    texts = {path: path.read_text() for path in (REPOSITORY / "trainer").rglob("*.py")}
    using = [p.name for p, text in texts.items() if "from tensorflow." in text]
    assert using == ["tensorflow_internals.py"]
