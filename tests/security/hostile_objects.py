"""Objects that no honest user writes: valid manifests of every kind, with values changed where nobody would.

Each is refused, or runs, or says why it does not; whatever it is, the cluster lives, its neighbours go on,
and it can be deleted.
"""

import copy
import itertools
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import hypothesis
import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, given, settings
from requests import Response

from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.kubernetes.names import API_VERSION
from tests.cases.kind import make_detailed_template, make_manifest
from tests.cases.kinds import KIND_CASES
from tests.security.from_openapi import NAMESPACE, make_namespace
from tests.security.servers import Server
from tests.security.tally import Tally

Object = dict[str, Any]
PATIENCE = 90.0
"""Seconds in which an object says what becomes of it, also on a loaded machine."""
BATCH = 30


_META: Object = {"name": "x", "labels": {"app": "fuzzed"}, "annotations": {"note": "x"}}
BASES: dict[str, Object] = {
    "pods": {"apiVersion": "v1", "kind": "Pod", "metadata": _META, "spec": make_detailed_template()["spec"]},
    "services": {
        "apiVersion": "v1", "kind": "Service", "metadata": _META,
        "spec": {
            "selector": {"app": "fuzzed"}, "clusterIP": "None", "type": "ClusterIP",
            "ports": [{"port": 80, "targetPort": "http", "name": "http", "protocol": "TCP"}],
        },
    },
    "configmaps": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _META, "data": {"a": "b"}},
    "secrets": {
        "apiVersion": "v1", "kind": "Secret", "metadata": _META, "data": {"a": "Yg=="}, "type": "Opaque",
    },
    "scaleplans": make_manifest(
        API_VERSION, "ScalePlan", "x", ownerJob="neighbour",
        replicaResourceSpecs={"worker": {"replicas": 1, "resource": {"cpu": "10m", "memory": "8Mi"}}},
    ),
    **{kind_of(kind).source.api.plural: cases.detailed for kind, cases in KIND_CASES.items()},
}  # fmt: skip
"""Plural → a manifest that would be accepted."""

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 10**400, 1.5, 1e308, "", " ", "x" * 300, "x" * 70_000, "1GB", "1e999",
    "1e-999", "-1",
    "0x10", "NaN", "inf", "1Ei", "99999999999999999999Ei", "٣", "500m", "\u0000", "\n", "\r\nX: y",
    "\x1b]0;x\x07\x1b[2J",
    "\u202e\u4e2d\U0001f4a9", "\ud800", "../../escape", "/", "/proc/self/mem", "$(A)", "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '", "{{workflow.name}}", "{{=sprig.env('HOME')}}", "{{ ti.xcom_pull() }}",
    "<script>alert(1)</script>",
    "%s%n", "${jndi:ldap://x}", "a.b.c", "A_B", "-x", "x-", [], {}, [[]], [None], {"": ""}, {"a": None},
    {"a" * 300: "b"},
    {"a/b/c": "d"}, {"name": "x"}, [{"name": "x"}] * 300, "2026-02-30T25:61:61Z", "9999-12-31T23:59:59Z",
)  # fmt: skip
_DRAWN = (
    st.sampled_from(VALUES)
    | st.text(max_size=20)
    | st.integers()
    | st.recursive(
        st.none() | st.booleans() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )
)


@dataclass(frozen=True)
class Hostile:
    """One object.

    Attributes:
        plural: of its kind.
        manifest: with a name of its own.
    """

    plural: str
    manifest: Object

    @property
    def collection(self) -> str:
        """Where objects of its kind are."""
        version = BASES[self.plural]["apiVersion"]
        group = f"apis/{version}" if "/" in version else f"api/{version}"
        return f"/{group}/namespaces/{NAMESPACE}/{self.plural}"


@st.composite
def hostile_manifests(draw: st.DrawFn) -> Hostile:
    """A manifest with one to three values changed, or left out, or added."""
    plural = draw(st.sampled_from(sorted(BASES)))
    manifest = copy.deepcopy(BASES[plural])
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, manifest)
    return Hostile(plural, manifest)


def _change(draw: st.DrawFn, place: Any) -> None:
    while True:
        keys: list[Any] = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        inner = place[key]
        if isinstance(inner, (dict, list)) and inner and draw(st.integers(0, 9)):
            place = inner
            continue
        match draw(st.integers(0, 9)):
            case 0:
                del place[key]
            case 1 if isinstance(place, dict):
                place[draw(st.text(max_size=10))] = copy.deepcopy(draw(_DRAWN))
            case _:
                place[key] = copy.deepcopy(draw(_DRAWN))
        return


def says_why(plural: str, found: Object) -> bool:
    """Whether an object runs, has ended, or tells by its status why not. Kinds without a status need none."""
    status = found.get("status") or {}
    if plural == "pods":
        waiting = [one.get("state", {}).get("waiting", {}) for one in status.get("containerStatuses") or []]
        unmet = [one for one in status.get("conditions") or [] if one.get("status") == "False"]
        told = [one for one in [*waiting, *unmet, status] if one.get("reason")]
        return status.get("phase") in ("Running", "Succeeded", "Failed") or bool(told)
    if plural in ("services", "configmaps", "secrets"):
        return True
    phase = str(status.get("phase") or "")
    fine = ("Running", "Succeeded", "Scaling", "Suspended")
    told = [status.get("reason"), status.get("message"), *(status.get("conditions") or [])]
    return phase in fine or (bool(phase) and any(told))


def status_of(answer: Response) -> Object:
    """The status of the object in an answer; {} if it has none, or there is no object."""
    return dict(answer.json().get("status") or {}) if answer.status_code == 200 else {}


def in_phase(phase: str) -> Callable[[Response], bool]:
    """Whether an answer's object is in a phase."""
    return lambda answer: status_of(answer).get("phase") == phase


def is_gone(answer: Response) -> bool:
    """Whether there is no such object."""
    return answer.status_code == 404


def is_explained(plural: str, answer: Response) -> bool:
    """Whether the object says what becomes of it; a time to live may have removed it."""
    return is_gone(answer) or says_why(plural, answer.json())


@dataclass
class Cluster:
    """The embedded cluster under attack, with neighbours whose work goes on.

    Attributes:
        server: its API server.
        tally: takes what is found.
        accepted: of the batch.
    """

    server: Server
    tally: Tally
    accepted: list[tuple[Hostile, str]] = field(default_factory=list)
    _master: str = ""

    def begin(self) -> None:
        """Start the neighbour: a job with its master and a worker."""
        make_namespace(self.server)
        neighbour = copy.deepcopy(BASES["elasticjobs"])
        neighbour["metadata"]["name"] = "neighbour"
        neighbour["spec"]["replicaSpecs"] = {"worker": {"replicas": 1, "template": make_detailed_template()}}
        collection = Hostile("elasticjobs", neighbour).collection
        answer = self.server.ask("POST", collection, neighbour)
        assert answer.status_code in (201, 409), answer.text
        self._await(f"{collection}/neighbour", in_phase("Running"), "the neighbour does not run")
        self._master = self._masters()

    def submit(self, hostile: Hostile) -> None:
        """Create it; take in how it was answered."""
        name = f"h-{uuid.uuid4().hex[:12]}"
        metadata = hostile.manifest.get("metadata")
        if isinstance(metadata, dict) and metadata.get("name") == "x":
            metadata["name"] = name
        answer = self.server.ask("POST", hostile.collection, hostile.manifest)
        self.tally.answered(answer.status_code, f"{hostile} says {answer.text[:300]}")
        if answer.status_code == 201:
            self.accepted.append((hostile, str(answer.json()["metadata"]["name"])))

    def settle(self) -> None:
        """Wait until each accepted object says what becomes of it; then look at the neighbours, and delete
        all."""
        for hostile, name in self.accepted:
            explained = partial(is_explained, hostile.plural)
            self._await(f"{hostile.collection}/{name}", explained, f"it does not say why: {hostile}")
        self._look_at_neighbours()
        for hostile, name in self.accepted:
            answer = self.server.ask("DELETE", f"{hostile.collection}/{name}", {"gracePeriodSeconds": 0})
            self.tally.answered(answer.status_code, f"DELETE of {hostile} says {answer.text[:300]}")
        for hostile, name in self.accepted:
            self._await(f"{hostile.collection}/{name}", is_gone, f"it does not go: {hostile}")
        self.accepted.clear()

    def _look_at_neighbours(self) -> None:
        name = f"canary-{uuid.uuid4().hex[:12]}"
        pod = copy.deepcopy(BASES["pods"])
        pod["metadata"]["name"] = name
        pod["spec"]["containers"][0] |= {"command": ["true"], "args": []}
        pods = Hostile("pods", pod).collection
        answer = self.server.ask("POST", pods, pod)
        self.tally.answered(answer.status_code, f"{pod} says {answer.text[:300]}")
        self._await(f"{pods}/{name}", in_phase("Succeeded"), "a new pod does not run to its end")
        self.server.ask("DELETE", f"{pods}/{name}")
        if (masters := self._masters()) != self._master:
            self.tally.found(f"the neighbour's master was replaced: {self._master} before, {masters} now")
            self._master = masters

    def _masters(self) -> str:
        pods = self.server.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods").json()["items"]
        return " ".join(
            f"{pod['metadata']['name']} {pod['metadata']['uid']} {pod['status'].get('phase')}"
            for pod in pods
            if pod["metadata"]["name"].startswith("neighbour-") and "master" in pod["metadata"]["name"]
        )

    def _await(self, path: str, holds: Callable[[Response], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds(answer := self.server.ask("GET", path)):
            if time.monotonic() > deadline:
                self.tally.found(f"{otherwise}; its status is {status_of(answer)}")
                return
            time.sleep(0.1)


def attack(server: Server, tally: Tally, seed: int, until: float) -> None:
    """Batches of objects drawn from a seed until the time is over; the first batch is whole.

    Args:
        server: the embedded cluster's.
        tally: takes what is found.
        seed: of the draws.
        until: as `time.monotonic` has it.
    """
    cluster = Cluster(server, tally)
    cluster.begin()
    for number in itertools.count():
        _batch(cluster, seed * 1_000 + number)
        cluster.settle()
        if time.monotonic() > until:
            return


def _batch(cluster: Cluster, seed: int) -> None:
    @hypothesis.seed(seed)
    @settings(
        max_examples=BATCH, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(hostile_manifests())
    def submitted(hostile: Hostile) -> None:
        cluster.submit(hostile)

    submitted()
