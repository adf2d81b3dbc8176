"""What holds for every kind of the registry: `edl_workflows.core.jobs.kinds.KINDS`.

A new kind is tested here with the example of its cases (`tests.cases.kinds`).
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.actions import Actions, RoleChange, apply_merge_patch
from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import pod_state
from edl_workflows.core.kubernetes.lost_pods import CONFIRM_SECONDS
from edl_workflows.pipelines.waiting.job_log import is_unobserved
from tests.cases.kinds import KIND_CASES
from tests.jobs_namespace import JobsNamespace

Manifest = dict[str, Any]
Step = tuple[str, int]

JOB_KINDS = [kind for kind in KINDS if kind.view is not None]
each_kind = pytest.mark.parametrize("kind", JOB_KINDS, ids=lambda kind: kind.name)
each_scaled_kind = pytest.mark.parametrize(
    "kind", [kind for kind in JOB_KINDS if kind.scale is not None], ids=lambda kind: kind.name
)
each_elastic_kind_scaled_by_its_spec = pytest.mark.parametrize(
    "kind",
    [kind for kind in JOB_KINDS if kind.elastic is not None and kind.scale is not None],
    ids=lambda kind: kind.name,
)
each_elastic_kind = pytest.mark.parametrize(
    "kind", [kind for kind in JOB_KINDS if kind.elastic is not None], ids=lambda kind: kind.name
)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["run", "run all", "succeed", "fail", "evict", "delete", "suspend", "resume", "wait"]
        ),
        st.integers(0, 9),
    ),
    max_size=12,
)
"""What may happen to a job: to the pod of that number, to the job, or nothing for some time."""


class KindWorld:
    """One job of a kind, beside objects of other owners that look like those of the job."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.namespace = JobsNamespace()
        self.job = self.namespace.add(KIND_CASES[kind.name].example)
        self.name: str = self.job["metadata"]["name"]
        labels = dict.fromkeys(kind.labels, "other") | {kind.labels[0]: self.name}
        spec = {"containers": [{"name": "main", "image": "other:1"}]}
        for name in (f"{self.name}-stray", "other"):
            head = {"name": name, "labels": dict(labels)}
            self.namespace.add({"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec})

    @property
    def manifest(self) -> Manifest:
        return self.namespace.objects[self.kind.name, self.name]

    @property
    def phase(self) -> JobPhase:
        return self.kind.view_stored(self.manifest).phase

    def own_pods(self) -> list[str]:
        """Names of the job's pods."""
        uid = self.job["metadata"]["uid"]
        return [
            name
            for (kind, name), obj in self.namespace.objects.items()
            if kind == "Pod" and any(o["uid"] == uid for o in obj["metadata"].get("ownerReferences", ()))
        ]

    def run_all(self) -> None:
        """Let all pods of the job run until it creates no more."""
        for _ in range(5):
            self.settle()
            for name in self.own_pods():
                if self.namespace.objects["Pod", name]["status"]["phase"] == "Pending":
                    self.namespace.set_pod(name, "Running")
        self.settle()

    def take(self, step: Step) -> None:
        """Apply one event."""
        what, number = step
        pods = self.own_pods()
        if what in ("suspend", "resume"):
            patch = self.kind.suspension(suspend=what == "suspend")
            self.namespace.edit(self.kind.name, self.name, {"spec": patch})
        elif what == "wait":
            self.namespace.tick(60 * number)
            self.namespace.reap()
        elif what == "run all":
            self.run_all()
        elif pods:
            self._change_pod(what, pods[number % len(pods)])

    def _change_pod(self, what: str, name: str) -> None:
        """An event of a pod that a node reports or a user causes. A pod that has ended can only be
        deleted."""
        if what != "delete" and pod_state.has_ended(self.namespace.objects["Pod", name]):
            return
        match what:
            case "run":
                self.namespace.set_pod(name, "Running")
            case "succeed":
                self.namespace.set_pod(name, "Succeeded", 0)
            case "fail":
                self.namespace.set_pod(name, "Failed", 1)
            case "evict":
                self.namespace.set_pod(name, "Failed", None, "Evicted")
            case "delete":
                self.namespace.delete("Pod", name)

    def settle(self) -> None:
        """Decide and apply until there is nothing left to do."""
        self.namespace.settle()

    def decide(self) -> Actions:
        return self.namespace.decide(self.kind.name, self.name)


def histories(kind: Kind, steps: list[Step]) -> Iterator[KindWorld]:
    """The world after each event, before the controller has seen it."""
    world = KindWorld(kind)
    yield world
    for step in steps:
        world.settle()
        world.take(step)
        if (kind.name, world.name) in world.namespace.objects:
            yield world


@each_kind
@settings(max_examples=30, deadline=None)
@given(steps=STEPS)
def test_reconcile_comes_to_rest(kind: Kind, steps: list[Step]) -> None:
    """After its own actions, a decision has no create, delete, patch, status or event."""
    for world in histories(kind, steps):
        world.settle()
        rest = world.decide()

        assert (rest.create, rest.delete, rest.patch, rest.status, rest.events) == ((), (), (), None, ())


@each_kind
@settings(max_examples=30, deadline=None)
@given(steps=STEPS)
def test_reconcile_touches_only_what_the_job_owns(kind: Kind, steps: list[Step]) -> None:
    """Every object that is deleted or patched is owned by the job, and every object that is created will
    be."""
    for world in histories(kind, steps):
        uid = world.job["metadata"]["uid"]
        actions = world.decide()
        touched = [(one.kind, one.name) for one in actions.delete]
        touched += [(one.kind, one.name) for one in actions.patch]
        objects = [*(world.namespace.objects[key] for key in touched), *actions.create]
        owners = [[owner["uid"] for owner in o["metadata"].get("ownerReferences", ())] for o in objects]

        assert owners == [[uid]] * len(objects)
        assert all(("Pod", name) in world.namespace.objects for name in (f"{world.name}-stray", "other"))


@each_kind
@settings(max_examples=30, deadline=None)
@given(steps=STEPS)
def test_final_phases_stay(kind: Kind, steps: list[Step]) -> None:
    """A job that has succeeded or failed keeps its phase and creates nothing, whatever happens."""
    ended: JobPhase | None = None
    for world in histories(kind, steps):
        actions = world.decide()
        if ended is not None:
            assert actions.create == ()
        world.settle()
        if ended is not None:
            assert world.phase is ended
        ended = world.phase if world.phase.final else None


@each_kind
@settings(max_examples=20, deadline=None)
@given(steps=STEPS)
def test_the_view_says_what_the_status_says(kind: Kind, steps: list[Step]) -> None:
    """A stage sees identity, phase, reason and generations as they are stored. A suspended job has no running
    pod."""
    for world in histories(kind, steps):
        world.settle()
        view, status = kind.view_stored(world.manifest), world.manifest["status"]

        assert (view.kind, view.name, view.uid) == (kind.name, world.name, world.job["metadata"]["uid"])
        assert (view.reason, view.message) == (status.get("reason", ""), status.get("message", ""))
        assert view.current
        assert not is_unobserved(view)
        if view.phase is JobPhase.SUSPENDED:
            pods = (world.namespace.objects["Pod", name] for name in world.own_pods())
            assert all(pod_state.has_ended(pod) for pod in pods)


@each_kind
def test_every_phase_has_its_view(kind: Kind) -> None:
    """The view has every phase of the kind, and exactly the final ones are final. A new job is Pending, and
    waits know that no controller has observed it."""
    assert kind.view is not None
    job = kind.model.parse(KIND_CASES[kind.name].example)
    phases = {str(condition) for condition in JobPhase}

    assert kind.view(job).phase is JobPhase.PENDING
    assert is_unobserved(kind.view(job))
    for phase in kind.phases:
        found = kind.view(
            kind.model.parse(KIND_CASES[kind.name].example | {"status": {"phase": str(phase)}})
        ).phase
        assert found in phases
        assert found.final == phase.final
    assert kind.failed in kind.phases


@each_scaled_kind
@settings(max_examples=50, deadline=None)
@given(replicas=st.integers(-1, 12), number=st.integers(0, 3), cpu=st.sampled_from(["", "500m", "2"]))
def test_what_scale_gives_is_valid(kind: Kind, replicas: int, number: int, cpu: str) -> None:
    """An edit that `scale` allows, even of resources only, results in a valid job with the requested
    nodes."""
    world = KindWorld(kind)
    world.run_all()
    roles = sorted(kind.view_stored(world.manifest).replicas)
    role = roles[number % len(roles)]
    wanted = RoleChange(None if replicas < 0 else replicas, {"cpu": cpu} if cpu else {})
    try:
        edit = kind.rescale(world.manifest, {role: wanted})
    except ManifestError:
        return
    edited = copy.deepcopy(world.manifest)
    edited["spec"] = apply_merge_patch(edited["spec"], edit.spec)
    kind.model.parse(edited)
    world.namespace.edit(kind.name, world.name, {"spec": edit.spec})
    world.run_all()
    counts = kind.view_stored(world.manifest).replicas

    assert sum(one.desired for one in counts.values()) == edit.nodes
    if wanted.replicas is not None:
        assert counts[role].desired == wanted.replicas


@each_elastic_kind
def test_the_elastic_role_is_one_that_can_be_scaled(kind: Kind) -> None:
    """The elastic role is within its bounds, and the status names it. If the kind creates the pods, their
    labels name it too, and `scale` accepts it."""
    assert kind.elastic is not None
    world = KindWorld(kind)
    world.run_all()
    elastic = kind.elastic(kind.model.parse(world.manifest))

    assert elastic is not None
    assert elastic.minimum <= elastic.replicas <= elastic.maximum
    if kind.scale is None:
        assert elastic.role in kind.view_stored(world.manifest).replicas
    else:
        edit = kind.rescale(world.manifest, {elastic.role: RoleChange(elastic.maximum)})
        world.namespace.edit(kind.name, world.name, {"spec": edit.spec})
        world.run_all()
        counts = kind.view_stored(world.manifest).replicas
        assert [n.desired for role, n in counts.items() if role.lower() == elastic.role.lower()] == [
            elastic.maximum
        ]
        pods = (world.namespace.objects["Pod", name]["metadata"]["labels"] for name in world.own_pods())
        assert elastic.role in {labels[kind.labels[1]] for labels in pods}


@each_elastic_kind_scaled_by_its_spec
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_an_autoscaler_does_not_oscillate(kind: Kind, data: st.DataObject) -> None:
    """A job that was scaled by its spec has the requested replicas, the same role and the same bounds, so the
    next plan for the same cluster changes nothing."""
    assert kind.elastic is not None
    world = KindWorld(kind)
    world.run_all()
    before = kind.elastic(kind.model.parse(world.manifest))
    assert before is not None
    wanted = data.draw(st.integers(before.minimum, min(before.maximum, before.minimum + 8)))
    edit = kind.rescale(world.manifest, {before.role: RoleChange(wanted)})
    world.namespace.edit(kind.name, world.name, {"spec": edit.spec})
    world.run_all()
    after = kind.elastic(kind.model.parse(world.manifest))

    assert after is not None
    assert (after.role, after.minimum, after.maximum) == (before.role, before.minimum, before.maximum)
    assert after.replicas == wanted


class SidecarWorld(KindWorld):
    """A job each of whose pods has a proxy that an injector added and that does not end by itself."""

    def __init__(self, kind: Kind, place: int) -> None:
        super().__init__(kind)
        self._place = place

    def settle(self) -> None:
        super().settle()
        for name in self.own_pods():
            containers = self.namespace.objects["Pod", name]["spec"]["containers"]
            if all(container["name"] != "a-proxy" for container in containers):
                containers.insert(min(self._place, len(containers)), {"name": "a-proxy", "image": "proxy:1"})

    def end_program(self, name: str, code: int) -> None:
        """Let the program of a pod end, while the proxy runs on."""
        pod = self.namespace.objects["Pod", name]
        own = next(c["name"] for c in pod["spec"]["containers"] if c["name"] != "a-proxy")
        ended = {"exitCode": code, "finishedAt": self.namespace.now.isoformat().replace("+00:00", "Z")}
        states: dict[str, Any] = {"a-proxy": {"running": {}}, own: {"terminated": ended}}
        statuses = [{"name": container, "state": state} for container, state in states.items()]
        pod["status"] = {"phase": "Running", "containerStatuses": statuses}


@each_kind
@pytest.mark.parametrize("place", [0, 9], ids=["first", "last"])
@pytest.mark.parametrize("code", [0, 1, 137])
def test_a_sidecar_that_does_not_end_changes_nothing(kind: Kind, code: int, place: int) -> None:
    """The end of the job's own container decides, wherever an injector has put another one: the job's phase
    is the same as without it, and pods whose program has ended are deleted, with an Event that says why."""
    plain, injected = KindWorld(kind), SidecarWorld(kind, place)
    for world in (plain, injected):
        world.run_all()
    ended = plain.own_pods()
    policies = {plain.namespace.objects["Pod", name]["spec"]["restartPolicy"] for name in ended}
    if code and policies != {"Never"}:
        pytest.skip("the kubelet starts the program again")
    for name in ended:
        plain.namespace.set_pod(name, "Failed" if code else "Succeeded", code)
        injected.end_program(name, code)
    old = {injected.namespace.objects["Pod", name]["metadata"]["uid"] for name in ended}
    for world in (plain, injected):
        for _ in range(4):
            world.settle()
            world.namespace.tick(60)

    assert injected.phase is plain.phase
    pods = [pod for (which, _), pod in injected.namespace.objects.items() if which == "Pod"]
    left = [pod for pod in pods if pod["metadata"]["uid"] in old]
    assert all(pod["metadata"].get("deletionTimestamp") for pod in left)
    said = [e.message for e in injected.namespace.events if e.reason == "OwnContainerEnded"]
    assert said
    assert all(f"exit code {code}, and a-proxy still runs" in message for message in said)


@each_kind
@pytest.mark.parametrize("forced", [False, True])
def test_a_lost_machine_does_not_hold_a_job_for_ever(kind: Kind, forced: bool) -> None:
    """A deleted pod whose end no kubelet confirms counts as gone. If another pod can't have its name, the job
    says what to do, unless the installation deletes such pods by force; otherwise the pod is replaced."""
    world = KindWorld(kind)
    world.namespace.settings = replace(world.namespace.settings, force_delete_lost_pods=forced)
    world.run_all()
    lost = world.own_pods()[0]
    uid = world.namespace.objects["Pod", lost]["metadata"]["uid"]
    world.namespace.delete("Pod", lost)
    world.settle()
    assert world.namespace.wake(kind.name, world.name) == CONFIRM_SECONDS
    world.run_all()

    status = world.manifest["status"]
    if kind.name == ELASTIC_JOB or forced:
        assert all(o["metadata"].get("uid") != uid for o in world.namespace.objects.values())
        assert world.phase in (JobPhase.RUNNING, JobPhase.PENDING, JobPhase.RESTARTING)
        assert len(world.own_pods()) >= 1
        assert status["reason"] != "PodLost"
    else:
        assert status["reason"] == "PodLost"
        assert f"kubectl delete pod {lost} --namespace default --force" in status["message"]
    assert any(e.reason == "PodLost" for e in world.namespace.events) is (kind.name != ELASTIC_JOB)


@each_kind
def test_a_lost_pod_with_a_finalizer_is_deleted_by_force_once(kind: Kind) -> None:
    """The API server removes it only when the finalizer goes: no decision deletes it again, and a job that
    needs its name says what keeps it."""
    world = KindWorld(kind)
    world.namespace.settings = replace(world.namespace.settings, force_delete_lost_pods=True)
    world.run_all()
    lost = next((n for n in world.own_pods() if "master" in n), world.own_pods()[0])
    pod = world.namespace.objects["Pod", lost]
    pod["metadata"]["finalizers"] = ["example.com/audit"]
    world.namespace.delete("Pod", lost)
    world.settle()
    assert world.namespace.wake(kind.name, world.name) == CONFIRM_SECONDS
    for _ in range(3):
        world.settle()
        world.namespace.tick(30)

    assert world.namespace.objects["Pod", lost] is pod
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 0
    if kind.name != ELASTIC_JOB:
        assert [e.reason for e in world.namespace.events if "by force" in e.message] == ["PodLost"]
        assert f"pod {lost} is deleted, but a finalizer keeps it" in world.manifest["status"]["message"]
