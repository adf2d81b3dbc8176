"""Status, scale and generation of custom resources; binding, logs, eviction and defaults of pods."""

from collections.abc import Callable

import pytest

from tests.conformance.support import Api, Object, config_map, eventually, pod, refusal

MakeWidget = Callable[..., Object]


def test_generation_counts_spec_changes(api: Api, wpath: str, widget: MakeWidget) -> None:
    """The generation starts at 1 and grows when the spec changes, but not with labels or status."""
    path = f"{wpath}/w"
    generations = [
        answer["metadata"]["generation"]
        for answer in (
            api.post(wpath, widget()),
            api.merge(path, {"metadata": {"labels": {"a": "b"}}}),
            api.merge(f"{path}/status", {"status": {"phase": "Running"}}),
            api.merge(path, {"spec": {"replicas": 2}}),
            api.merge(path, {"spec": {"replicas": 2}}),
        )
    ]

    assert generations == [1, 1, 1, 2, 2]


def test_status_is_apart(api: Api, wpath: str, widget: MakeWidget) -> None:
    """Writes to the main resource do not change the status, and writes to the status subresource change
    nothing else."""
    made = api.post(wpath, {**widget(), "status": {"phase": "Forged"}})
    api.merge(f"{wpath}/w", {"status": {"phase": "Forged"}})
    written = api.merge(f"{wpath}/w/status", {"status": {"phase": "Running"}, "spec": {"replicas": 7}})
    written["spec"]["replicas"] = 8
    replaced = api.put(f"{wpath}/w/status", {**written, "status": {"phase": "Done"}})

    assert "status" not in made
    assert (written["status"], replaced["status"]) == ({"phase": "Running"}, {"phase": "Done"})
    assert replaced["spec"]["replicas"] == 1
    assert api.get(f"{wpath}/w/status") == api.get(f"{wpath}/w")


def test_status_conflicts(api: Api, wpath: str, widget: MakeWidget) -> None:
    """A status written from an old version is a Conflict; status is validated."""
    old = api.post(wpath, widget())
    api.merge(f"{wpath}/w/status", {"status": {"phase": "Running"}})
    error = refusal(lambda: api.put(f"{wpath}/w/status", {**old, "status": {"phase": "Done"}}))
    wrong = refusal(lambda: api.merge(f"{wpath}/w/status", {"status": {"phase": 5}}))

    assert error.reason == "Conflict"
    assert "status.phase" in wrong.causes


def test_scale(api: Api, wpath: str, widget: MakeWidget) -> None:
    """The scale subresource reads and writes replicas, counts as a spec change and obeys the schema and
    versions."""
    api.post(wpath, widget(replicas=2))
    api.merge(f"{wpath}/w/status", {"status": {"replicas": 1, "selector": "app=x"}})
    scale = api.get(f"{wpath}/w/scale")
    scaled = api.put(f"{wpath}/w/scale", {**scale, "spec": {"replicas": 4}})
    patched = api.merge(f"{wpath}/w/scale", {"spec": {"replicas": 5}})
    stale = refusal(lambda: api.put(f"{wpath}/w/scale", {**scale, "spec": {"replicas": 6}}))
    too_many = refusal(lambda: api.merge(f"{wpath}/w/scale", {"spec": {"replicas": 11}}))

    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 2})
    assert scale["status"] == {"replicas": 1, "selector": "app=x"}
    assert (scaled["spec"], patched["spec"]) == ({"replicas": 4}, {"replicas": 5})
    assert (stale.reason, too_many.code) == ("Conflict", 422)
    assert api.get(f"{wpath}/w")["metadata"]["generation"] == 3


def test_no_such_subresource(api: Api, core: str) -> None:
    """A subresource that a resource does not have gets 404 or 405."""
    api.post(f"{core}/configmaps", config_map("a"))

    assert refusal(lambda: api.merge(f"{core}/configmaps/a/status", {})).code in (404, 405)


def test_pod_defaults(api: Api, core: str) -> None:
    """A pod starts Pending with the usual defaults."""
    made = api.post(f"{core}/pods", pod("p", schedulerName="nobody"))

    assert made["status"]["phase"] == "Pending"
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    assert made["spec"]["serviceAccountName"] == "default"
    assert made["spec"]["priority"] == 0
    assert made["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        pytest.param({"containers": []}, "spec.containers", id="containers"),
        pytest.param({"containers": [{"image": "i"}]}, "spec.containers[0].name", id="container's name"),
        pytest.param({"containers": [{"name": "a"}]}, "spec.containers[0].image", id="container's image"),
        pytest.param({"restartPolicy": "Sometimes"}, "spec.restartPolicy", id="restart policy"),
        pytest.param(
            {"containers": [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]},
            "spec.containers[1].name",
            id="twice",
        ),
    ],
)
def test_pod_validation(api: Api, core: str, spec: Object, path: str) -> None:
    """A pod with a missing or invalid field is Invalid at the field's path."""
    error = refusal(lambda: api.post(f"{core}/pods", pod("p", **spec)))

    assert (error.code, error.reason) == (422, "Invalid")
    assert path in error.causes


def test_pod_types(api: Api, core: str) -> None:
    """A value of the wrong type in a built-in object is a BadRequest that names the field."""
    manifest = pod("p")
    manifest["spec"]["containers"][0]["env"] = [{"name": "A", "value": 1}]
    error = refusal(lambda: api.post(f"{core}/pods", manifest))

    assert (error.code, error.reason) == (400, "BadRequest")
    assert "env" in error.status["message"]


def test_pod_quantities(api: Api, core: str) -> None:
    """Quantities may be numbers or text, are read as text, and requests default to limits."""
    resources = {"limits": {"cpu": 2, "memory": "1Gi"}, "requests": {"cpu": 0.5}}
    container = {"name": "a", "image": "i", "resources": resources}
    made = api.post(f"{core}/pods", pod("p", containers=[container], schedulerName="nobody"))
    read = made["spec"]["containers"][0]["resources"]

    assert read["limits"] == {"cpu": "2", "memory": "1Gi"}
    assert read["requests"]["memory"] == "1Gi"
    assert read["requests"]["cpu"] in ("0.5", "500m")


def test_pod_spec_is_immutable(api: Api, core: str) -> None:
    """Little more than the images of a pod's spec can be changed."""
    api.post(f"{core}/pods", pod("p", schedulerName="nobody"))
    error = refusal(lambda: api.merge(f"{core}/pods/p", {"spec": {"restartPolicy": "Never"}}))
    image = [{"op": "replace", "path": "/spec/containers/0/image", "value": "example.com/none:2"}]
    changed = api.send("PATCH", f"{core}/pods/p", image, "application/json-patch+json")

    assert (error.code, list(error.causes)) == (422, ["spec"])
    assert changed["spec"]["containers"][0]["image"] == "example.com/none:2"


def test_binding(api: Api, core: str) -> None:
    """A binding gives a pod its node, once."""
    api.post(f"{core}/pods", pod("p", schedulerName="nobody"))
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    answer = api.post(f"{core}/pods/p/binding", binding)
    error = refusal(lambda: api.post(f"{core}/pods/p/binding", binding))
    bound = api.get(f"{core}/pods/p")

    assert answer["status"] == "Success"
    assert (error.code, error.reason) == (409, "Conflict")
    assert bound["spec"]["nodeName"] == "n1"
    assert {one["type"]: one["status"] for one in bound["status"]["conditions"]}["PodScheduled"] == "True"


def test_eviction(api: Api, core: str) -> None:
    """An eviction deletes the pod."""
    api.post(f"{core}/pods", pod("p", schedulerName="nobody"))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    api.post(f"{core}/pods/p/eviction", body)

    eventually(lambda: api.absent(f"{core}/pods/p"), "the pod is gone")


def test_log_of_an_unknown_container(api: Api, core: str) -> None:
    """A log needs a container that the pod has, and its name if there are several."""
    containers = [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]
    api.post(f"{core}/pods", pod("p", containers=containers, schedulerName="nobody"))
    unnamed = refusal(lambda: api.get(f"{core}/pods/p/log"))
    unknown = refusal(lambda: api.get(f"{core}/pods/p/log", container="c"))

    assert (unnamed.code, unknown.code) == (400, 400)
    assert "choose one of: [a b]" in unnamed.status["message"]
    assert "c is not valid for pod p" in unknown.status["message"]
    assert api.raw("GET", f"{core}/pods/nobody/log").status_code == 404


@pytest.mark.parametrize(
    "query",
    [
        pytest.param({"sinceSeconds": "0"}, id="no time"),
        pytest.param({"sinceSeconds": "5", "sinceTime": "2026-01-01T00:00:00Z"}, id="two times"),
    ],
)
def test_log_since_what(api: Api, core: str, query: dict[str, str]) -> None:
    """A log starts at a time, which is given as such or as a positive number of seconds; other values are
    rejected."""
    api.post(f"{core}/pods", pod("p", schedulerName="nobody"))
    error = refusal(lambda: api.get(f"{core}/pods/p/log", **query))

    assert (error.code, error.reason) == (422, "Invalid")
    assert "sinceSeconds" in error.status["message"]


def test_priority_class(api: Api, core: str, namespace: str) -> None:
    """A pod gets its class's priority; an unknown class is Forbidden."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    api.post(path, {"metadata": {"name": namespace}, "value": 1000})
    made = api.post(f"{core}/pods", pod("p", priorityClassName=namespace, schedulerName="nobody"))
    error = refusal(lambda: api.post(f"{core}/pods", pod("q", priorityClassName="nobody")))
    api.delete(f"{path}/{namespace}")

    assert made["spec"]["priority"] == 1000
    assert (error.code, error.reason) == (403, "Forbidden")


def test_service_defaults(api: Api, core: str) -> None:
    """A service gets a cluster IP unless it is headless, and target ports."""
    ports = [{"port": 80}]
    plain = api.post(f"{core}/services", {"metadata": {"name": "s"}, "spec": {"ports": ports}})["spec"]
    headless = api.post(
        f"{core}/services", {"metadata": {"name": "h"}, "spec": {"clusterIP": "None", "ports": ports}}
    )["spec"]
    error = refusal(
        lambda: api.post(f"{core}/services", {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 0}]}})
    )

    assert plain["type"] == "ClusterIP"
    assert plain["clusterIP"] not in ("", "None")
    assert plain["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert headless["clusterIP"] == "None"
    assert "spec.ports[0].port" in error.causes


def test_secret_string_data(api: Api, core: str) -> None:
    """Plain text given as stringData is stored as base64 data; the type never changes."""
    made = api.post(f"{core}/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    error = refusal(lambda: api.merge(f"{core}/secrets/s", {"type": "other"}))

    assert (made["data"], made["type"], "stringData" in made) == ({"a": "Yg=="}, "Opaque", False)
    assert (error.code, list(error.causes)) == (422, ["type"])


def test_immutable_config_map(api: Api, core: str) -> None:
    """An immutable ConfigMap keeps its data."""
    api.post(f"{core}/configmaps", config_map("a", data={"k": "v"}, immutable=True))
    error = refusal(lambda: api.merge(f"{core}/configmaps/a", {"data": {"k": "w"}}))

    assert (error.code, list(error.causes)) == (422, ["data"])


def test_events_by_object(api: Api, core: str, namespace: str) -> None:
    """Events are found by the object that they are about."""
    involved = {"kind": "Pod", "namespace": namespace, "name": "p", "uid": "u"}
    event = {
        "metadata": {"name": "e"},
        "involvedObject": involved,
        "reason": "Started",
        "type": "Normal",
        "message": "m",
    }
    api.post(f"{core}/events", event)
    selector = "involvedObject.name=p,involvedObject.kind=Pod,involvedObject.uid=u"

    assert len(api.get(f"{core}/events", fieldSelector=selector)["items"]) == 1
    assert api.get(f"{core}/events", fieldSelector="involvedObject.name=q")["items"] == []


def test_nodes(api: Api) -> None:
    """The status of a node has its capacity."""
    api.post("/api/v1/nodes", {"metadata": {"name": "conf-node", "labels": {"conformance": "yes"}}})
    status = {"capacity": {"cpu": "2", "memory": "1Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
    patched = api.merge("/api/v1/nodes/conf-node/status", {"status": status})
    api.delete("/api/v1/nodes/conf-node")

    assert patched["status"]["capacity"] == {"cpu": "2", "memory": "1Gi"}
