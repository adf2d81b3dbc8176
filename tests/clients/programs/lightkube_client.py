"""lightkube, as its users write it."""

import os
import sys
from datetime import datetime

from lightkube import ApiError, Client
from lightkube.codecs import load_all_yaml
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Node, Pod
from lightkube.types import PatchType

NAMESPACE = os.environ["NAMESPACE"]


def make_pod(client, name, script):
    main = Container(name="main", image="none", command=["sh", "-c", script])
    spec = PodSpec(restartPolicy="Never", containers=[main])
    client.create(Pod(metadata=ObjectMeta(name=name), spec=spec))
    wait = ["Succeeded", "Running"]
    for _, pod in client.watch(Pod, fields={"metadata.name": name}):
        if pod.status and pod.status.phase in wait:
            return


def check_typed_objects():
    """Typed objects are made, patched, listed and deleted."""
    client = Client(namespace=NAMESPACE)
    client.create(ConfigMap(metadata=ObjectMeta(name="a", labels={"k": "v"}), data={"x": "1"}))
    client.patch(ConfigMap, "a", {"data": {"y": "2"}}, patch_type=PatchType.MERGE)
    found = list(client.list(ConfigMap, labels={"k": "v"}))
    client.delete(ConfigMap, "a")

    assert [one.data for one in found] == [{"x": "1", "y": "2"}]
    assert [node.metadata.name for node in client.list(Node)] == ["edl-local"]


def check_logs_are_followed():
    """A log is followed with times to the container's end; since leaves nothing of a young one out."""
    client = Client(namespace=NAMESPACE)
    make_pod(client, "a", "echo one; sleep 1; echo two")
    lines = list(client.log("a", follow=True, timestamps=True))

    assert [line.rstrip("\n").split(" ", 1)[1] for line in lines] == ["one", "two"]
    assert datetime.fromisoformat(lines[0].split(" ")[0]).year > 2000
    assert [line.rstrip("\n") for line in client.log("a", since=3600, tail_lines=1)] == ["two"]


def check_manifests():
    """Manifests are loaded and created."""
    client = Client(namespace=NAMESPACE)
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n"
    for obj in load_all_yaml(text):
        client.create(obj, namespace=NAMESPACE)

    assert client.get(ConfigMap, "a").data == {"k": "v"}


def check_server_side_apply_is_refused_with_advice():
    """The client's apply, which is server-side, fails with a sentence that says what to do."""
    client = Client(namespace=NAMESPACE, field_manager="test")
    try:
        client.apply(ConfigMap(apiVersion="v1", kind="ConfigMap", metadata=ObjectMeta(name="a")))
    except ApiError as error:
        assert error.status.code == 415
        assert "use client-side apply" in str(error)
    else:
        raise AssertionError("server-side apply passed")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
