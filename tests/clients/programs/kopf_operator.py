"""An operator written with kopf, run by kopf itself, standing alone."""

import os
import subprocess
import sys
import time

import kopf
from kopf.testing import KopfRunner

NAMESPACE = os.environ["NAMESPACE"]


@kopf.on.create("configmaps", labels={"greet": kopf.PRESENT})
def greet(meta, patch, **_):
    patch.setdefault("data", {})["greeting"] = f"hello {meta.name}"
    return "greeted"


@kopf.on.field("configmaps", field="data.asked", labels={"greet": kopf.PRESENT})
def answer(new, patch, body, **_):
    if new:
        kopf.info(body, reason="Asked", message=f"asked {new}")
        patch.setdefault("data", {})["answer"] = new.upper()


@kopf.on.delete("configmaps", labels={"greet": kopf.PRESENT})
def part(meta, **_):
    print(f"parted from {meta.name}")


def kubectl(*arguments):
    command = ["kubectl", "--namespace", NAMESPACE, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def until(holds, what):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def data(field):
    return kubectl("get", "configmap", "one", "-o", f"jsonpath={{.data.{field}}}")


def check_operator():
    """Handlers of creation, change and deletion run; finalizers, patches and events work."""
    command = ["run", "--standalone", "--namespace", NAMESPACE, "--verbose", __file__]
    with KopfRunner(command, timeout=120) as runner:
        kubectl("create", "configmap", "one")
        kubectl("label", "configmap", "one", "greet=yes")
        until(lambda: data("greeting") == "hello one", "created")
        kubectl("patch", "configmap", "one", "--type=merge", "-p", '{"data": {"asked": "why"}}')
        until(lambda: data("answer") == "WHY", "changed")
        until(lambda: "asked why" in kubectl("get", "events"), "event")
        kubectl("delete", "configmap", "one", "--timeout=60s")

    assert runner.exit_code == 0, runner.output
    assert runner.exception is None
    assert "parted from one" in runner.output


if __name__ == "__main__":
    globals()[sys.argv[1]]()
