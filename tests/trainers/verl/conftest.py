"""One Ray and three of verl's servers for all tests of this folder."""

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONWARNINGS": "ignore",
}
SERVERS = 3
"""Two would do for moving; one may be killed."""

sys.path.insert(0, str(Path(__file__).parent))
with warnings.catch_warnings():  # verl's own are not ours to fail on
    warnings.simplefilter("ignore")
    import verl.workers.rollout.llm_server  # noqa: F401


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As verl's processes see it, this one included."""
    import servers

    shown = servers.shown_as_vllm(tmp_path_factory.mktemp("shown") / "path")
    paths = [str(shown), str(TESTS), str(Path(__file__).parent)]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}
    before = dict(os.environ)
    os.environ.update(environment)
    sys.path.insert(0, str(shown))
    import ray

    ray.init(
        num_cpus=4,  # as Ray counts: TransferQueue's actors want one each
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=bool(os.environ.get("VERBOSE")),
        runtime_env={"env_vars": environment},
    )
    yield
    ray.shutdown()
    sys.path.remove(str(shown))
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def model(environment: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import servers

    return servers.tokenized_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def engines(environment: None, model: Path) -> dict[str, Any]:
    """verl's server actors by address."""
    import servers

    return servers.start_servers(servers.trainer_config(model), SERVERS)
