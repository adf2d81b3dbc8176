"""The assignment of host ports, without any sockets."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.local.network.ports import IDLE_KEPT, NetworkObjects, PortAssignments
from edl_workflows.local.pods import Pod, Service

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def allocator() -> Any:
    """Host ports 1000, 1001, … that nobody has."""
    return lambda taken: next(port for port in range(1000, 9999) if port not in taken)


def make_pod(name: str, *ports: int, uid: str = "", age: int = 0, **labels: str) -> Pod:
    """A pod that declares these ports."""
    declared = [{"containerPort": port, "name": f"p{port}"} for port in ports]
    metadata = {
        "name": name,
        "uid": uid or name,
        "labels": labels,
        "creationTimestamp": T0 - timedelta(seconds=age),
    }
    return Pod.model_validate(
        {"metadata": metadata, "spec": {"containers": [{"name": "main", "ports": declared}]}}
    )


def make_service(name: str, port: int, target: int | str | None = None, **selector: str) -> Service:
    """A Service with one port."""
    spec = {"ports": [{"port": port, "targetPort": target or port}], "selector": selector}
    return Service.model_validate({"metadata": {"name": name}, "spec": spec})


def world(*objects: Pod | Service) -> NetworkObjects:
    """These Services and pods."""
    services = {f"default/{one.metadata.name}": one for one in objects if isinstance(one, Service)}
    return NetworkObjects(services, {one.key: one for one in objects if isinstance(one, Pod)})


def test_pod_and_service_meet_in_any_order() -> None:
    """Whether the Service, its pod or a mention of the name comes first, all get one host port."""
    service, pod = make_service("ps-0", 2222, ps="0"), make_pod("ps-0", 2222, ps="0")
    steps = {
        "mention": lambda ports, seen: ports.mention("u", "default", "ps-0", 2222, seen),
        "service": lambda ports, seen: ports.of_service("default", "ps-0", 2222, seen),
        "pod": lambda ports, seen: ports.of_pod(pod, seen)[2222],
    }
    objects: dict[str, Pod | Service] = {"service": service, "pod": pod}
    for first in steps:
        for second in steps:
            for third in steps:
                ports, results = PortAssignments({}, allocator()), []
                known: list[Pod | Service] = []
                for step in (first, second, third):
                    known += [objects[step]] if step in objects else []
                    results.append(steps[step](ports, world(*known)))
                assert len(set(results)) == 1, (first, second, third)


def test_only_one_of_several_pods_has_the_services_port() -> None:
    """Of two pods behind a Service, the older one has the Service's host port; the other one has another
    port."""
    service = make_service("web", 80, 8080, app="web")
    old, young = make_pod("a", 8080, age=9, app="web"), make_pod("b", 8080, app="web")
    ports, seen = PortAssignments({}, allocator()), world(service, old, young)
    first, second = ports.of_pod(old, seen)[8080], ports.of_pod(young, seen)[8080]

    assert ports.of_service("default", "web", 80, seen) == first != second


def test_a_successor_inherits_the_port() -> None:
    """When a pod is gone, the next one behind the Service gets the same host port."""
    service = make_service("master", 50001, role="master")
    one, two = make_pod("master-0", 50001, role="master"), make_pod("master-1", 50001, role="master")
    ports = PortAssignments({}, allocator())
    first = ports.of_pod(one, world(service, one))
    ports.release(world(service))

    assert ports.of_pod(two, world(service, two)) == first


def test_a_named_target_port_and_an_undeclared_one() -> None:
    """A Service leads to a container's port by name, and to a number that no container declares."""
    named, plain = make_service("named", 80, "p8080", app="x"), make_service("plain", 81, 9090, app="x")
    pod = make_pod("x", 8080, app="x")
    ports, seen = PortAssignments({}, allocator()), world(named, plain, pod)
    assigned = ports.of_pod(pod, seen)

    assert set(assigned) == {8080, 9090}
    assert ports.of_service("default", "named", 80, seen) == assigned[8080]


def test_a_second_service_is_forwarded() -> None:
    """If nothing listens on the reserved port of a Service, its connections are forwarded to the pod's real
    port."""
    ports = PortAssignments({}, allocator())
    early = ports.mention("u", "default", "late", 80, world())
    pod, service = make_pod("web", 8080, app="web"), make_service("late", 80, 8080, app="web")
    real = ports.of_pod(pod, world(pod))[8080]
    seen = world(pod, service)

    assert ports.forwards(seen) == {early: real}
    assert ports.table(seen, {})["late.default.svc:80"] == f"127.0.0.1:{real}"


def test_the_table_knows_services_and_pod_addresses() -> None:
    """The map has a row for each Service port and each pod IP with port."""
    pod, service = make_pod("web", 8080, app="web"), make_service("web", 80, 8080, app="web")
    ports, seen = PortAssignments({}, allocator()), world(pod, service)
    port = ports.of_pod(pod, seen)[8080]

    assert ports.table(seen, {"web": "127.64.0.1"}) == {
        "web.default.svc:80": f"127.0.0.1:{port}",
        "127.64.0.1:8080": f"127.0.0.1:{port}",
    }


def test_mentions_hold_a_port_while_the_pod_lives() -> None:
    """A reserved port stays while a pod that was started with it lives, also in the next cluster process."""
    pod, ports = make_pod("worker"), PortAssignments({}, allocator())
    port = ports.mention("worker", "default", "ps-9", 2222, world(pod))
    heir = PortAssignments(
        ports.assigned, allocator(), {uid: list(keys) for uid, keys in ports.mentions.items()}
    )
    heir.release(world(pod))
    kept = dict(heir.assigned)
    heir.release(world())

    assert kept == {"svc/default/ps-9/2222": port}
    assert heir.assigned == {}


@given(
    st.lists(
        st.sampled_from(["pod-a", "pod-b", "svc-a", "svc-b", "say-a", "say-b", "del-a", "del-b"]), max_size=20
    )
)
def test_no_two_living_pods_share_a_port(steps: list[str]) -> None:
    """In any order of pods, Services, mentions and deletions, two living pods never have the same host port,
    and a pod keeps its port."""
    ports = PortAssignments({}, allocator())
    services: dict[str, Service] = {}
    pods: dict[str, Pod] = {}
    kept: dict[str, dict[int, int]] = {}
    for step in steps:
        verb, _, name = step.partition("-")
        seen = NetworkObjects(services, pods)
        if verb == "pod" and f"default/{name}" not in pods:
            pod = make_pod(name, 80, uid=f"{name}{len(kept)}", app=name)
            pods[f"default/{name}"] = pod
            kept[pod.metadata.uid] = ports.of_pod(pod, NetworkObjects(services, pods))
        elif verb == "svc":
            services[f"default/{name}"] = make_service(name, 80, app=name)
        elif verb == "say":
            ports.mention("other", "default", name, 80, seen)
        elif verb == "del":
            pods.pop(f"default/{name}", None)
            ports.release(NetworkObjects(services, pods))
        living = NetworkObjects(services, pods)
        now = [ports.of_pod(pod, living)[80] for pod in pods.values()]
        assert len(set(now)) == len(now)
        assert all(ports.of_pod(pod, living) == kept[pod.metadata.uid] for pod in pods.values())


def test_services_without_pods_hold_no_ports() -> None:
    """However many Services there are, the map and the forwarding of connections ask for no host port."""
    ports, seen = (
        PortAssignments({}, allocator()),
        world(*(make_service(f"s{one}", 80, app=str(one)) for one in range(50))),
    )

    assert ports.table(seen, {}) == {}
    assert ports.forwards(seen) == {}
    assert ports.assigned == {}


def test_idle_services_give_their_ports_back() -> None:
    """A Service keeps its port for the pod's successor. Of many Services without a pod, the newest keep
    theirs."""
    ports, services = (
        PortAssignments({}, allocator()),
        [make_service(f"s{one}", 80, app=str(one)) for one in range(IDLE_KEPT + 9)],
    )
    pods = [make_pod(f"p{one}", 80, app=str(one)) for one in range(len(services))]
    for service, pod in zip(services, pods, strict=True):
        ports.of_pod(pod, world(service, pod))
    mentioned = ports.mention("u", "default", "s1", 80, world(services[1], pods[1]))
    alive = make_pod("u")
    ports.release(world(*services, pods[0], alive))
    left = {key.split("/")[2] for key in ports.assigned if key.startswith("svc/")}

    assert ports.of_pod(pods[0], world(services[0], pods[0]))[80] == 1000
    assert ports.of_service("default", "s1", 80, world(services[1])) == mentioned
    assert left == {"s0", "s1", *(f"s{one}" for one in range(9, len(services)))}


def test_a_pod_without_ports_needs_none() -> None:
    """A pod without ports starts even if no host port is left."""

    def none_left(_taken: frozenset[int]) -> int:
        raise UnavailableError("no free port")

    ports, pod = PortAssignments({}, none_left), make_pod("plain")

    assert ports.of_pod(pod, world(pod, make_service("web", 80, app="web"))) == {}
