"""Simulates a whole job in memory, to test the master's state: nodes that behave like agents, a controller,
and crashes.

Like the state, the simulation does no I/O. Each method is one event that can happen at any time. `calm` runs
rounds in which everything goes well. The model is represented by the set of shards it was trained on, so a
test sees if data was lost.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from edl_workflows.core.exceptions import ConflictError, EdlError
from edl_workflows.core.jobs.scale_plan.model import ScalePlanPhase, ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import CheckpointRef, TrainingCluster
from edl_workflows.core.protocol.datasets import AckRequest, DatasetParams, LeaseRequest, LeaseState, ShardKey
from edl_workflows.core.protocol.nodes import (
    Directive,
    ExitReport,
    Heartbeat,
    NodeRef,
    ProcessReport,
    ProcessState,
    Registration,
    Usage,
)
from edl_workflows.core.protocol.training import (
    CheckpointBegin,
    CheckpointDamage,
    CheckpointEnd,
    CheckpointRestore,
    Evaluation,
    ModelReport,
    StepReport,
)
from edl_workflows.services.master.state import messages, model_messages, observations, views
from edl_workflows.services.master.state.autoscale import autoscale_steps
from edl_workflows.services.master.state.job import JobState, MachineLoss, RolloutRequest
from edl_workflows.services.master.state.nodes.registry import ExitReason
from edl_workflows.services.master.state.observations import ObservedPod, PodPhase
from edl_workflows.services.master.state.rollouts.rollout import Rollout
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.stored_state import Announcement, StoredState
from edl_workflows.services.master.state.transitions import settle_job

Ref = tuple[str, int]
DATA = "train"


@dataclass
class SimulatedPod:
    """A pod and the agent in it.

    Attributes:
        unanswered: shards that it trained and whose acknowledgement is not known to be stored.
        waiting: its training process ended, and the agent was told to wait for a version after that.
        outlived: another container runs although its own has ended.
        loss: what shows that its machine is lost.
    """

    type: str
    id: int
    phase: PodPhase = PodPhase.PENDING
    exit_code: int | None = None
    unanswered: list[ShardKey] = field(default_factory=list)
    waiting: int = 0
    outlived: bool = False
    loss: MachineLoss | None = None

    @property
    def ref(self) -> NodeRef:
        """Its node."""
        return NodeRef(type=self.type, id=self.id)

    @property
    def runs(self) -> bool:
        """Whether there is somebody in it."""
        return self.phase is PodPhase.RUNNING


@dataclass
class SimulatedPlan:
    """A ScalePlan as the cluster has it. An auto one has pods, a manual one a spec."""

    uid: str
    name: str
    spec: ScalePlanSpec | None = None
    create: tuple[Ref, ...] = ()
    remove: tuple[Ref, ...] = ()
    phase: ScalePlanPhase | None = None
    run: Rollout | None = None


class SimulatedJob:
    """The world around one `JobState`.

    Args:
        settings: of the job.
        shards: how many there are to train with; 0: the job has no data set.
    """

    def __init__(self, settings: JobSettings, shards: int = 40) -> None:
        self.settings = settings
        self.now = 1000.0
        self.state = JobState(settings, watches_pods=True)
        if shards:
            self.state.shards.register(DatasetParams(name=DATA, size=shards, shard_size=1))
        self.shards = shards
        self.stored = b""
        self.published = Announcement()
        self.pods: dict[Ref, SimulatedPod] = {}
        self.created: list[Ref] = []
        self.removed: list[Ref] = []
        self.plans: dict[str, SimulatedPlan] = {}
        self.models: dict[int, set[int]] = {}
        self.saved: dict[str, set[int]] = {}
        self.manifests: dict[str, CheckpointRestore] = {}
        self.damaged: set[str] = set()
        self.versions_seen: dict[int, tuple[int, ...]] = {}
        self.steps: dict[int, int] = {}
        self.usage: Callable[[SimulatedPod], Usage | None] = lambda _: None
        self.asks_to_leave = True
        self.says: Callable[[TrainingCluster], Evaluation | None] = lambda _: None
        self.settle()
        self.commit()

    def settle(self) -> None:
        """The master draws its consequences."""
        settle_job(self.state, self.now)

    def commit(self) -> None:
        """The master stores its state, and what follows from a stored state happens."""
        self.state.said = views.next_announcement(self.state)
        self.stored, self.published = self.state.to_json(), self.state.said
        for pod in self.pods.values():
            pod.unanswered.clear()
        for cluster in (self.published.directive.active, self.published.directive.next):
            if cluster is not None:
                ids = tuple(member.id for member in (*cluster.ps, *cluster.workers))
                assert self.versions_seen.setdefault(cluster.version, ids) == ids, (
                    "a version changed its members"
                )
        if (own := self.state.autoscaling.open) is not None and not own.seen:
            name = own.name(self.settings.name)
            if name not in self.plans:
                self.submit(name, own.spec)
        for plan in self.state.pod_plans.open:
            name = plan.name(self.settings.name)
            if name not in self.plans:
                self.check_removals(plan.remove)
                self.plans[name] = SimulatedPlan(name, name, create=plan.create, remove=plan.remove)

    def check_removals(self, remove: tuple[Ref, ...]) -> None:
        """No member that runs is taken away while anybody may need it: those of the newest version that
        trained, of the active one and of the next. One that was silent for too long is given up, running or
        not.
        """
        directive = self.published.directive
        needed = set(self.versions_seen.get(directive.trained, ()))
        for cluster in (directive.active, directive.next):
            needed |= {member.id for member in (*cluster.ps, *cluster.workers)} if cluster else set()
        for ref in remove:
            node = self.state.nodes.find(*ref)
            given_up = node is not None and node.status.final
            runs = ref in self.pods and self.pods[ref].runs and not given_up
            assert not (ref[0] == self.settings.member_type and ref[1] in needed and runs), (
                f"{ref} is needed: {directive}"
            )

    def crash(self) -> None:
        """The master dies, and another goes on from what is stored."""
        self.state = JobState(self.settings, StoredState.from_json(self.stored), watches_pods=True)
        self.observe()

    def observe(self) -> None:
        """The master sees the cluster."""
        auto = {plan.name: plan.phase for plan in self.plans.values() if plan.spec is None}
        observations.observe_pod_requests(self.state, auto, self.now)
        seen = [
            ObservedPod(
                p.type,
                p.id,
                p.phase,
                p.exit_code,
                outlived=p.outlived,
                loss=p.loss,
                cause=_taken(p.exit_code),
            )
            for p in self.pods.values()
        ]
        observations.observe_pods(self.state, seen, self.now)
        manual = [
            RolloutRequest(plan.uid, plan.name, plan.spec, plan.phase, generation=1)
            for plan in self.plans.values()
            if plan.spec is not None
        ]
        observations.observe_plans(self.state, manual)
        self.settle()

    def look(self) -> None:
        """The autoscaler takes a sample, asks the local optimizer where it would, and takes the answer."""
        autoscale_steps.record_sample(self.state, self.now)
        asked = autoscale_steps.next_request(self.state, self.now)
        if asked is not None:
            autoscale_steps.apply_answer(
                self.state, asked, autoscale_steps.local_answer(asked, self.now), self.now
            )
        self.settle()

    def record(self) -> None:
        """The status of the plan that is being carried out shows what is stored of it."""
        run = StoredState.from_json(self.stored).plan
        if run is None:
            return
        plan = next((plan for plan in self.plans.values() if plan.uid == run.uid), None)
        if plan is not None:
            assert plan.phase is None or not plan.phase.final or plan.phase is run.phase, (
                "a final phase changed"
            )
            plan.phase, plan.run = run.phase, run
        observations.note_recorded_plan(self.state, run.uid, run.serial)
        self.settle()

    def control(self) -> None:
        """The controller carries auto plans out."""
        for plan in self.plans.values():
            if plan.spec is None and plan.phase is None:
                for ref in plan.create:
                    assert ref not in self.created, f"the id of {ref} is used twice"
                    self.created.append(ref)
                    self.pods[ref] = SimulatedPod(*ref)
                for ref in plan.remove:
                    self.removed.append(ref)
                    self.pods.pop(ref, None)
                plan.phase = ScalePlanPhase.SUCCEEDED

    def start_pods(self) -> None:
        """Pending pods begin to run."""
        for pod in self.pods.values():
            if pod.phase is PodPhase.PENDING:
                pod.phase = PodPhase.RUNNING

    def kill(self, ref: Ref, code: int = 137) -> None:
        """A pod dies."""
        pod = self.pods[ref]
        if pod.runs:
            pod.phase, pod.exit_code = PodPhase.FAILED, code

    def submit(self, name: str, spec: ScalePlanSpec) -> None:
        """Somebody wants the job changed."""
        self.plans[name] = SimulatedPlan(f"uid-{name}", name, spec=spec)

    def delete_plan(self, name: str) -> None:
        """Somebody deletes a plan."""
        self.plans.pop(name, None)

    def act(self, ref: Ref) -> None:
        """The agent of a pod does what it is told, and says everything again."""
        pod = self.pods.get(ref)
        if pod is None or not pod.runs:
            return
        node = self.state.nodes.find(*ref)
        registration = Registration(
            node=pod.ref, rank=node.rank if node else 0, incarnation=f"{pod.type}{pod.id}"
        )
        messages.register_node(self.state, registration, self.now)
        beat = Heartbeat(
            node=pod.ref,
            incarnation=f"{pod.type}{pod.id}",
            usage=self.usage(pod),
            asks_to_leave=self.asks_to_leave,
        )
        messages.record_heartbeat(self.state, beat, self.now)
        directive = views.directive_for(self.published, str(pod.ref), registered=node is not None)
        if directive.stop or (directive.finished and pod.type == names.PS_TYPE):
            self._exit(pod, directive.active.version if directive.active else 0, 0)
        else:
            self._processes(pod, directive)
        self.settle()

    def _processes(self, pod: SimulatedPod, directive: Directive) -> None:
        for cluster in (directive.active, directive.next):
            if cluster is not None and self._takes_part(pod, cluster):
                self._report(pod, cluster.version, ProcessState.READY)
        active = directive.active
        if active is None or pod.type == names.PS_TYPE or pod.waiting >= active.version:
            return
        if not self._serves(active):
            self._exit(pod, active.version, 2)
            return
        if not self._loaded(pod, active):
            return
        chief = pod.id == active.chief_id
        if directive.drain:
            self._settle_shards(pod)
            self._report(pod, active.version, ProcessState.DRAINED)
        if chief and directive.save:
            self._save(pod, active, directive.save)
        elif not directive.drain:
            self._train(pod, active)

    def _takes_part(self, pod: SimulatedPod, cluster: TrainingCluster) -> bool:
        return pod.type != names.PS_TYPE or any(member.id == pod.id for member in cluster.ps)

    def _serves(self, cluster: TrainingCluster) -> bool:
        servers = (self.pods.get((names.PS_TYPE, member.id)) for member in cluster.ps)
        return all(server is not None and server.runs for server in servers)

    def _loaded(self, pod: SimulatedPod, active: TrainingCluster) -> bool:
        """Whether a version has its model; its first process restores it, if the checkpoint is whole."""
        restore = active.restore
        kept = {member.process for member in active.ps}
        if active.version not in self.models and kept and 0 not in kept:
            (former,) = kept  # its servers have the model of their former version, and no process restores it
            self.models[active.version] = set(self.models[former])
            self.steps[active.version] = self.steps[former]
        if active.version not in self.models:
            if restore is not None and restore.uri in self.damaged:
                self._report_damage(pod, active.version, restore.uri)
                return False
            if restore is None and self.manifests:
                if not self._start_from_folder(pod, active):
                    return False
                newest = list(self.manifests.values())[-1]
                restore = CheckpointRef(uri=newest.uri, step=newest.step)
            if not self._confirmed(pod, active, restore):
                return False
            self.models[active.version] = set(self.saved[restore.uri]) if restore else set()
            self.steps[active.version] = restore.step if restore else 0
        return True

    def _confirmed(self, pod: SimulatedPod, active: TrainingCluster, restore: CheckpointRef | None) -> bool:
        """Whether the chief has said what the restored model says, and may train on; others wait for that."""
        says = self.says(active)
        if restore is None or says is None:
            return True
        report = ModelReport(node=pod.ref, version=active.version, evaluation=says)
        try:
            return not model_messages.record_model_report(self.state, report).refused
        except ConflictError:
            return False  # another is the chief, or the version is left

    def _start_from_folder(self, pod: SimulatedPod, active: TrainingCluster) -> bool:
        """The chief takes the newest checkpoint of the folder, and says so."""
        if (pod.type, pod.id) != (active.chief_type, active.chief_id):
            return False
        newest = list(self.manifests.values())[-1]
        said = newest.model_copy(update={"node": pod.ref, "version": active.version})
        try:
            model_messages.record_restored_checkpoint(self.state, said, self.now)
        except ConflictError:
            return False  # the version, or the chief, is another by now
        return newest.uri not in self.damaged

    def _report_damage(self, pod: SimulatedPod, version: int, uri: str) -> None:
        damage = CheckpointDamage(node=pod.ref, version=version, uri=uri, error=f"{uri}: torn")
        with contextlib.suppress(ConflictError):  # another process said it before, and the version is left
            model_messages.record_damaged_checkpoint(self.state, damage)

    def _report(self, pod: SimulatedPod, version: int, what: ProcessState) -> None:
        messages.record_process_report(self.state, ProcessReport(node=pod.ref, version=version, state=what))

    def _settle_shards(self, pod: SimulatedPod) -> None:
        self.state.shards.acknowledge(DATA, AckRequest(node=pod.ref, done=pod.unanswered), self.now)

    def _save(self, pod: SimulatedPod, active: TrainingCluster, request: str = "") -> None:
        if (published := self._publish(pod, active, request)) is not None:
            model_messages.end_checkpoint(self.state, *published, self.now)

    def _publish(
        self, pod: SimulatedPod, active: TrainingCluster, request: str
    ) -> tuple[str, CheckpointEnd] | None:
        """A whole checkpoint in the folder; its ticket, and what the master is to hear."""
        says = self.says(active) if request else None
        begin = CheckpointBegin(node=pod.ref, version=active.version, request=request, evaluation=says)
        try:
            ticket = model_messages.begin_checkpoint(self.state, begin, self.now)
        except EdlError:
            return None  # the version changed meanwhile
        uri = f"{active.version}/{ticket.id}/{len(self.saved)}"
        self.saved[uri] = set(self.models[active.version])
        step = self.steps[active.version]
        position = ticket.position.model_dump(mode="json", exclude_defaults=True)
        self.manifests[uri] = CheckpointRestore(
            node=pod.ref, version=active.version, uri=uri, step=step, position=position
        )
        return ticket.id, CheckpointEnd(node=pod.ref, uri=uri, step=step)

    def _train(self, pod: SimulatedPod, active: TrainingCluster) -> None:
        self._settle_shards(pod)
        if not views.may_lease(self.state, active.version):
            return
        holding = sorted({key.lease for key in pod.unanswered})
        request = LeaseRequest(node=pod.ref, version=active.version, max_shards=2, holding=holding)
        reply = self.state.shards.lease(DATA, request, self.now)
        if reply.state is LeaseState.END:
            self._exit(pod, active.version, 0)
            return
        for shard in reply.shards:
            self.models[active.version].add(shard.start)
            pod.unanswered.append(shard)
            self.steps[active.version] += 1
        self._settle_shards(pod)
        step = StepReport(
            node=pod.ref,
            version=active.version,
            step=self.steps[active.version],
            time=self.now,
            first_step_time=self.now,
        )
        messages.record_step_report(self.state, step)

    def save_periodically(self, *, told: bool = True) -> None:
        """The chief saves by itself.

        Args:
            told: whether the master hears that it is complete.
        """
        active = self.published.directive.active
        pod = self.pods.get((names.WORKER_TYPE, active.chief_id)) if active else None
        if active is not None and pod is not None and pod.runs and active.version in self.models:
            (self._save if told else self._publish)(pod, active, "")
            self.settle()

    def _exit(self, pod: SimulatedPod, version: int, code: int) -> None:
        report = ExitReport(node=pod.ref, incarnation=f"{pod.type}{pod.id}", version=version, code=code)
        verdict = messages.decide_exit(self.state, report, self.now)
        if verdict is None:
            return  # it asks again
        if verdict.wait:
            pod.waiting = version
        else:
            pod.phase = PodPhase.FAILED if code else PodPhase.SUCCEEDED
            pod.exit_code = code

    def everything(self) -> Iterator[None]:
        """One round in which all happens that can."""
        self.observe()
        self.commit()
        self.control()
        self.start_pods()
        yield
        for ref in list(self.pods):
            self.act(ref)
            yield
        self.commit()
        self.record()
        self.now += 1.0

    def calm(self, rounds: int = 60) -> None:
        """Everything goes well for so many rounds."""
        for _ in range(rounds):
            for _ in self.everything():
                pass


def _taken(code: int | None) -> ExitReason | None:
    """Pods of this simulation that a signal ended were taken away."""
    return ExitReason.KILLED if code in (137, 143) else None
