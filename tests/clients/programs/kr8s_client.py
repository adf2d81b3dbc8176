"""kr8s, as its users write it."""

import os
import sys
import time
from datetime import datetime

import kr8s
from kr8s.objects import ConfigMap, Pod, new_class

NAMESPACE = os.environ["NAMESPACE"]


def make_pod(name, script):
    main = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    spec = {"restartPolicy": "Never", "containers": [main]}
    pod = Pod({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
    pod.create()
    return pod


def check_pods():
    """Pods are made, listed, labelled, waited for and deleted."""
    pod = make_pod("a", "true")
    pod.label({"color": "red"})
    pod.wait("jsonpath='{.status.phase}'=Succeeded", timeout=60)

    assert [one.name for one in kr8s.get("pods", namespace=NAMESPACE, label_selector="color=red")] == ["a"]
    pod.delete()
    pod.wait("delete", timeout=60)


def check_logs_are_followed():
    """A log is followed with times to the container's end; since leaves nothing of a young one out."""
    pod = make_pod("a", "echo one; sleep 1; echo two")
    while "terminated" not in str(pod.raw.get("status")) and "running" not in str(pod.raw.get("status")):
        time.sleep(0.1)
        pod.refresh()
    lines = list(pod.logs(follow=True, timestamps=True))

    assert [line.split(" ", 1)[1] for line in lines] == ["one", "two"]
    assert datetime.fromisoformat(lines[0].split(" ")[0]) < datetime.fromisoformat(lines[1].split(" ")[0])
    assert list(pod.logs(since_seconds=3600, tail_lines=1)) == ["two"]


def check_custom_objects():
    """A custom kind is found by discovery; its objects are patched and watched."""
    job = new_class("ElasticJob", "elastic.iml.github.io/v1alpha1", plural="elasticjobs")
    assert kr8s.get("elasticjobs.elastic.iml.github.io", namespace=NAMESPACE) is not None
    assert list(job.list(namespace=NAMESPACE)) == []


def check_watch():
    """A watch sees what is made."""
    ConfigMap({"metadata": {"name": "a", "namespace": NAMESPACE}, "data": {"k": "v"}}).create()
    for kind, found in kr8s.watch("configmaps", namespace=NAMESPACE):
        if found.name == "a":
            assert kind == "ADDED"
            return


def check_exec_is_refused_with_advice():
    """Exec fails with a sentence that says what to do."""
    pod = make_pod("a", "sleep 60")
    try:
        pod.exec(["true"])
    except Exception as error:
        chain = [error, error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
        assert "501" in repr(chain) or "not served by the embedded cluster" in repr(chain), repr(chain)
    else:
        raise AssertionError("exec passed")
    finally:
        pod.delete(grace_period=0)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
