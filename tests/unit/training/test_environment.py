"""The environment of a training pod, and TF_CONFIG."""

import json
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.training.environment import (
    NodeEnvironment,
    cluster_version,
    process_environment,
    tf_config,
)
from tests.unit.training.fake_master import cluster, world

ENV = {
    names.ENV_MASTER_ADDR: "elasticjob-demo-dlrover-master.default.svc:50001",
    names.ENV_JOB_TOKEN: "secret-token",
    names.ENV_JOB_NAME: "demo",
    names.ENV_NAMESPACE: "default",
    names.ENV_POD_NAME: "demo-edljob-worker-3",
    names.ENV_NODE_TYPE: "worker",
    names.ENV_NODE_ID: "3",
    names.ENV_NODE_RANK: "1",
}


def test_environment_is_read_whole() -> None:
    """The node, its rank, the job and the master are read from the variables, and the token is not shown."""
    environment = NodeEnvironment.read(ENV)
    assert (str(environment.node), environment.rank, environment.job) == ("worker-3", 1, "demo")
    assert environment.master == "http://elasticjob-demo-dlrover-master.default.svc:50001"
    assert "secret-token" not in repr(environment)


@pytest.mark.parametrize("name", sorted(ENV))
def test_missing_variable_is_named(name: str) -> None:
    """Outside of a pod the error says which variable is missing."""
    with pytest.raises(InvalidError, match=name):
        NodeEnvironment.read({key: value for key, value in ENV.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (names.ENV_NODE_TYPE, "gpu"),
        (names.ENV_NODE_ID, "-1"),
        (names.ENV_NODE_ID, "x"),
        (names.ENV_NODE_RANK, "1.5"),
    ],
)
def test_malformed_variable_is_named(name: str, value: str) -> None:
    """A malformed value is shown with its variable."""
    with pytest.raises(InvalidError, match=f"{name}.*{value}"):
        NodeEnvironment.read({**ENV, name: value})


def test_cluster_version_comes_from_the_agent() -> None:
    """Without the agent's variable, the error says that the program was not started by the agent."""
    assert cluster_version({names.ENV_CLUSTER_VERSION: "4"}) == 4
    with pytest.raises(InvalidError, match=names.ENV_CLUSTER_VERSION):
        cluster_version({})


def test_tf_config_of_a_worker_names_servers_and_itself() -> None:
    """A worker's sparse TF_CONFIG has all servers in the order of their ranks, and of the workers only
    itself, with the ports of the version."""
    config = json.loads(tf_config(NodeEnvironment.read(ENV), cluster(2, ps=2)))
    assert config == {
        "cluster": {
            "ps": {
                "0": "demo-edljob-ps-0.demo-edljob.default.svc:2222",
                "1": "demo-edljob-ps-1.demo-edljob.default.svc:2222",
            },
            "worker": {"1": "demo-edljob-worker-3.demo-edljob.default.svc:3333"},
        },
        "task": {"type": "worker", "index": 1},
    }


def test_tf_config_of_a_server_has_its_rank_in_the_version() -> None:
    """A parameter server's index is its rank in the version, whatever its id."""
    members = cluster(1, ps=3).ps
    moved = cluster(1).model_copy(update={"ps": [members[2].model_copy(update={"rank": 0}), members[0]]})
    environment = NodeEnvironment.read({**ENV, names.ENV_NODE_TYPE: "ps", names.ENV_NODE_ID: "2"})
    assert json.loads(tf_config(environment, moved))["task"] == {"type": "ps", "index": 0}


def test_tf_config_of_a_world_names_all_workers_by_rank() -> None:
    """In a collective job, the index of a worker is its rank in the version. The evaluator is not part of the
    cluster."""
    workers = [f"demo-edljob-worker-{i}.demo-edljob.default.svc:3333" for i in (5, 3)]
    config = json.loads(tf_config(NodeEnvironment.read(ENV), world(2, (5, 3))))
    assert config == {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 1}}
    evaluator = NodeEnvironment.read({**ENV, names.ENV_NODE_TYPE: "evaluator", names.ENV_NODE_ID: "0"})
    config = json.loads(tf_config(evaluator, world(2, (5, 3))))
    assert config["cluster"] == {"worker": workers}
    assert config["task"]["type"] == "evaluator"


def test_launchers_in_pytorchs_style_find_their_world() -> None:
    """PyTorch's variables have the size, the rank and rank 0's address of the version, for torchrun and for a
    program without a launcher."""
    env = process_environment(NodeEnvironment.read(ENV), world(2, (5, 3)), {"HOME": "/home/me"})
    host, port = "demo-edljob-worker-5.demo-edljob.default.svc", "3333"
    assert {name: value for name, value in env.items() if name != "TF_CONFIG"} == {
        "HOME": "/home/me", "EDL_CLUSTER_VERSION": "2",
        "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": host, "PET_MASTER_PORT": port, "MASTER_ADDR": host, "MASTER_PORT": port,
        "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0",
    }  # fmt: skip
    kept = process_environment(NodeEnvironment.read(ENV), world(2, (3,)), {"PET_NPROC_PER_NODE": "8"})
    assert kept["PET_NPROC_PER_NODE"] == "8"
    assert "WORLD_SIZE" not in process_environment(NodeEnvironment.read(ENV), cluster(2, ps=1), {})


def test_addresses_are_those_of_the_embedded_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster without a pod network, addresses that are learned at run time are resolved."""
    table = tmp_path / "map.json"
    table.write_text(json.dumps({"demo-edljob-ps-0.demo-edljob.default.svc:2222": "127.0.0.1:4000"}))
    monkeypatch.setenv("EDL_SERVICE_MAP", str(table))
    monkeypatch.setenv("EDL_PORT_3334", "4001")
    config = json.loads(tf_config(NodeEnvironment.read(ENV), cluster(1, ps=1)))
    assert config["cluster"] == {"ps": {"0": "127.0.0.1:4000"}, "worker": {"1": "127.0.0.1:4001"}}
