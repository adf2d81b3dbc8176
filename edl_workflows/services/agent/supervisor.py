"""The agent's loop: runs the training processes that the master's directive asks for, and reports how they
end.

`edl_workflows.services.agent.process_choice` decides which processes run;
`edl_workflows.services.agent.processes` handles one process.
"""

import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl_workflows.core.backoff import Backoff
from edl_workflows.core.exceptions import ConflictError, EdlError, ForbiddenError
from edl_workflows.core.jobs.elastic_job.separate_copies import NO_GROUP
from edl_workflows.core.jobs.grace import LEAST_SAVE_GRACE
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.nodes import (
    CLUSTER_LOST_EXIT_CODE,
    CheckRound,
    CrashReport,
    Directive,
    ExitReport,
    Heartbeat,
    LeaveReport,
    LeaveVerdict,
    Registration,
    StackReport,
)
from edl_workflows.services.agent.agent_checkpoints import AgentCheckpoints
from edl_workflows.services.agent.group_connections import GroupConnections, read_text
from edl_workflows.services.agent.leave_inquiry import LeaveInquiry
from edl_workflows.services.agent.local_group import is_group_command
from edl_workflows.services.agent.node_check import run_node_check
from edl_workflows.services.agent.process_choice import choose_processes
from edl_workflows.services.agent.process_tree import UsageMeter
from edl_workflows.services.agent.processes import TrainingProcess
from edl_workflows.training import addresses
from edl_workflows.training.client import MasterClient, call_until_answered
from edl_workflows.training.collective.recordings import find_recordings
from edl_workflows.training.directives import DirectiveWatch
from edl_workflows.training.environment import NodeEnvironment, process_environment

TERMINATED = 143
REFUSED = 1
FAREWELL_SECONDS = 2.0
"""Time that a terminated agent has to report its exit."""
FORBIDDEN_SECONDS = 30.0
"""Time after which an agent gives up if its token is rejected: an address may briefly lead to another job's
master."""
MOST_DOUBLINGS = 5
"""Limit for the back-off of a prepared process: the cause of its failure may go away at any time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentSettings:
    """How the agent runs.

    Attributes:
        command: the training program with its arguments.
        checkpoint_grace: seconds between SIGTERM and SIGKILL for a process of the active version, in which
            the chief saves. None: `LEAST_SAVE_GRACE`, or longer if the master has measured longer saves.
        retire_grace: the same for processes that are no longer needed.
        heartbeat: seconds between heartbeats.
        first_restart_delay: seconds before a prepared process that died is restarted; doubles each time.
    """

    command: Sequence[str]
    checkpoint_grace: float | None = None
    retire_grace: float = 2.0
    heartbeat: float = 5.0
    first_restart_delay: float = 1.0


class Supervisor:
    """The agent of one node.

    Args:
        environment: of the pod.
        client: to the master.
        settings: how to run.
        base_env: environment of the training processes, to which their own variables are added.
    """

    def __init__(
        self,
        environment: NodeEnvironment,
        client: MasterClient,
        settings: AgentSettings,
        base_env: Mapping[str, str] = os.environ,
    ) -> None:
        self._environment = environment
        self._client = client
        self._settings = settings
        self._base_env = base_env
        self._incarnation = uuid.uuid4().hex
        self._wake = threading.Event()
        self._told_to_end = threading.Event()
        self._terminating = threading.Event()
        self._leave_inquiry = LeaveInquiry(self._ask_to_leave, self._wake.set)
        self._watch = DirectiveWatch(client, environment.node, self._wake.set, self._register)
        self._checkpoints = AgentCheckpoints(
            environment, client, lambda: self._watch.latest, self._wake.set, base_env
        )
        self._processes: dict[int, TrainingProcess] = {}
        self._retiring: dict[int, float] = {}
        """Deadline by version (monotonic seconds) after which a process that was asked to exit is killed."""
        self._ended: set[int] = set()
        self._dumped = ""
        self._checked = 0
        self._refusal = ""
        self._forbidden_since = 0.0
        self._crashes: dict[int, int] = {}
        self._restart_at: dict[int, float] = {}
        self._group: GroupConnections | None = None
        self._trains_own_copy = False

    @property
    def version(self) -> int:
        """The active cluster version; 0 before the first."""
        active = self._watch.latest.active
        return active.version if active is not None else 0

    def terminate(self) -> None:
        """Ask the agent to exit, as on SIGTERM. Callable from any thread, but not from a signal handler."""
        if not self._told_to_end.is_set():
            self._told_to_end.set()
            self._leave_inquiry.start()
        self._wake.set()

    def run(self) -> int:
        """Supervise until the node's work is done. Call it in the main thread.

        Returns:
            The agent's exit code: that of the training process; 0 when released; 1 when the master rejects
            the node; 143 after `terminate`.
        """
        self._watch.start()
        threading.Thread(target=self._heartbeats, name="heartbeat", daemon=True).start()
        self._checkpoints.start()
        try:
            while True:
                self._wake.wait(self._next_due())
                self._wake.clear()
                code = self._turn()
                if code is not None:
                    return code
        finally:
            self._watch.close()
            self._terminating.set()
            for process in self._processes.values():
                process.kill()
            for process in self._processes.values():
                process.wait(5.0)
            self._checkpoints.close()

    def _turn(self) -> int | None:
        """One round of the loop; returns the exit code when the agent is done."""
        if self._told_to_end.is_set() and (self._leave_inquiry.allowed or not self._processes):
            self._terminating.set()
            return self._shut_down(TERMINATED)
        if self._refusal:
            log.error("the master rejects this node: %s", self._refusal)
            return REFUSED
        for version in [v for v, process in self._processes.items() if process.code is not None]:
            code = self._process_ended(self._processes.pop(version))
            if code is not None:
                return code
        directive = self._watch.latest
        if directive.stop or (directive.finished and self._ends_with_job(directive)):
            return self._shut_down(0)
        if self._lost_variables(directive):
            log.error("the process whose variables the job returns to is gone")
            return self._shut_down(TERMINATED)
        self._follow(directive)
        self._dump_stacks(directive)
        self._check_node(directive)
        return None

    def _lost_variables(self, directive: Directive) -> bool:
        """Whether a version goes on with this parameter server's former process, which has ended."""
        node = self._environment.node
        return node.type == names.PS_TYPE and any(
            cluster.rank_of(node.type, node.id) is not None
            and self._process_of(cluster) not in (cluster.version, *self._processes)
            for cluster in directive.clusters
        )

    def _ends_with_job(self, directive: Directive) -> bool:
        """Whether only the end of the job ends this node: it serves, or waits for a place in a collective
        version."""
        serves = self._environment.node.type in (names.PS_TYPE, names.EVALUATOR_TYPE)
        return serves or (directive.active is not None and directive.active.collective)

    def _follow(self, directive: Directive) -> None:
        now = time.monotonic()
        waiting = {version for version, at in self._restart_at.items() if at > now}
        decided = choose_processes(
            directive, self._environment.node, self._processes.keys(), self._ended | waiting
        )
        for version in decided.end:
            if version not in self._retiring:
                log.info("terminating the process of cluster version %d", version)
                self._retiring[version] = now + self._settings.retire_grace
                self._processes[version].terminate()
        for version, kill_at in self._retiring.items():
            if kill_at <= now:
                self._processes[version].kill()
        if self._may_go_on(directive):
            for cluster in decided.start:
                self._start(cluster)

    def _may_go_on(self, directive: Directive) -> bool:
        """Whether the copies of a lost version are safe, so that the next version may start.

        A collective version begins when its members are prepared, so a short wait here lets the others start
        from the newest copy. With parameter servers, training waits for the servers anyway.
        """
        active = directive.active
        if active is None or not directive.lost:
            return True
        return self._checkpoints.settled(active.version) or not active.collective

    def _dump_stacks(self, directive: Directive) -> None:
        asked, self._dumped = directive.dump not in ("", self._dumped), directive.dump
        process = self._processes.get(self._process_of(directive.active))
        if asked and process is not None:
            log.warning("training hangs: the stacks of the process of version %d follow", process.version)
            threading.Thread(
                target=self._report_stacks, args=(process, directive.dump), name="stacks", daemon=True
            ).start()

    def _report_stacks(self, process: TrainingProcess, dump: str) -> None:
        report = StackReport(
            node=self._environment.node,
            dump=dump,
            stacks=process.dump_stacks(),
            recordings=find_recordings(self._base_env),
        )
        try:
            call_until_answered(lambda: self._client.stacks(report), self._terminating)
        except EdlError as error:
            log.warning("%s", error)

    def _check_node(self, directive: Directive) -> None:
        check = directive.check
        if check is not None and check.number > self._checked:
            self._checked = check.number
            threading.Thread(target=self._measure, args=(check,), name="node-check", daemon=True).start()

    def _measure(self, check: CheckRound) -> None:
        report = run_node_check(check, self._environment)
        if report is not None:
            log.info("node check %d: %s", check.number, report.error or f"{report.seconds:.2f} s")
            try:
                call_until_answered(lambda: self._client.node_check(report), self._terminating)
            except EdlError as error:
                log.warning("%s", error)

    def _start(self, cluster: TrainingCluster) -> None:
        log.info("starting the process of cluster version %d", cluster.version)
        base = {**self._base_env, **self._checkpoints.environment}
        env = process_environment(self._environment, cluster, base)
        process = TrainingProcess(cluster.version, self._settings.command, env, self._wake.set)
        self._processes[cluster.version] = process
        self._watch_group(cluster, process)

    def _watch_group(self, cluster: TrainingCluster, process: TrainingProcess) -> None:
        """Watch whether the program meets the other members of its version. A local group does so itself."""
        node = self._environment.node
        others = [member.address for member in cluster.workers if member.id != node.id]
        self._group = None
        apart = cluster.rank_of(node.type, node.id) is None or is_group_command(self._settings.command)
        if others and not apart:
            self._group = GroupConnections(
                process.pid,
                self._environment.listen_address(cluster.version),
                addresses.resolve_all(others),
                read_text(self._settings.command, self._base_env),
            ).start()

    def _own_copy(self, code: int | None = None) -> bool | None:
        """Whether the program trains a model of its own; the log gets a line when that is found."""
        own_copy = self._group.trains_own_copy(code) if self._group is not None else None
        if own_copy and not self._trains_own_copy:
            log.warning("%s", NO_GROUP)
        self._trains_own_copy = bool(own_copy)
        return own_copy

    def _process_of(self, cluster: TrainingCluster | None) -> int:
        """The version for which this node's process of a version was started; 0 without a version."""
        node = self._environment.node
        return 0 if cluster is None else cluster.process_of(node.type, node.id)

    def _process_ended(self, process: TrainingProcess) -> int | None:
        """Handle the end of a process; returns the agent's exit code, or None if the agent continues."""
        version, code = process.version, process.code
        assert code is not None
        directive = self._watch.latest
        desired_versions = [self._process_of(cluster) for cluster in directive.clusters]
        if self._retiring.pop(version, None) is not None or version not in desired_versions:
            return None
        if self._only_prepares(version, code, directive):
            self._put_off(process, code)
            return None
        log.info("the process of cluster version %d exited with code %d", version, code)
        self._report_death(process)
        # Before the exit is reported, because the master may then name the checkpoint to continue from. When
        # training has succeeded, the last checkpoint must be reported first, however long the master is
        # unreachable.
        patience = self._checkpoint_grace if code else math.inf
        self._checkpoints.save_newest(patience, self._terminating.is_set)
        if not self._may_wait(process, code):
            return code
        log.info("waiting for the cluster version after %d", version)
        self._ended.add(version)
        return None

    def _only_prepares(self, version: int, code: int, directive: Directive) -> bool:
        """Whether the process was only preparing: the successor of a version that trains here or was lost
        before this node joined, or a member whose group did not form, which is not this node's fault."""
        active = directive.active
        if version == self._process_of(active):
            return False
        beside = active is not None and (bool(self._processes) or directive.lost)
        return beside or code == CLUSTER_LOST_EXIT_CODE

    def _report_death(self, process: TrainingProcess) -> None:
        """Tell the master at once, in a thread, that a process has failed, so that the other members of a
        collective version can go on without it."""
        active = self._watch.latest.active
        if not process.code or active is None or not active.collective:
            return
        report = self._exit_report(process, process.code)

        def report_death() -> None:
            try:
                call_until_answered(lambda: self._client.died(report), self._terminating)
            except EdlError as error:
                log.warning("%s", error)  # the report of the exit says the same

        threading.Thread(target=report_death, name="death", daemon=True).start()

    def _may_wait(self, process: TrainingProcess, code: int) -> bool:
        """Report an exit; returns whether the master wants the node to wait for the next cluster version."""
        try:
            verdict = call_until_answered(
                lambda: self._client.exit(self._exit_report(process, code)), self._terminating
            )
        except EdlError as error:
            log.warning("%s", error)
            return False
        return verdict is not None and verdict.wait

    def _put_off(self, process: TrainingProcess, code: int) -> None:
        """Restart a preparing process that died later, with exponential back-off. The crash is reported, so
        that the master can give the version up."""
        version = process.version
        crashes = self._crashes[version] = self._crashes.get(version, 0) + 1
        first = self._settings.first_restart_delay
        delay = Backoff(first, most=first * 2**MOST_DOUBLINGS).delay(crashes)
        log.warning(
            "the process of version %d exited with code %d; restarting it in %.0f s", version, code, delay
        )
        self._restart_at[version] = time.monotonic() + delay
        report = CrashReport(
            node=self._environment.node,
            incarnation=self._incarnation,
            version=version,
            crashes=crashes,
            code=code,
            last_lines=process.last_lines,
        )
        try:
            self._watch.offer(self._client.crash(report))
        except EdlError as error:
            log.warning("%s", error)  # the report of the next crash includes this one

    def _shut_down(self, code: int) -> int:
        """Terminate all processes; the active one gets time for a checkpoint."""
        ended = {version: process for version, process in self._processes.items() if process.code is not None}
        active = self._watch.latest.active
        training = self._process_of(active)
        # Without an active version the programs may have formed their own group, and already train.
        grace = {
            version: self._checkpoint_grace
            if active is None or version == training
            else self._settings.retire_grace
            for version in self._processes
        }
        start = time.monotonic()
        for process in self._processes.values():
            process.terminate()
        for version in sorted(grace, key=grace.__getitem__):
            process = self._processes[version]
            if not process.wait(max(0.0, start + grace[version] - time.monotonic())):
                log.warning("the process of version %d did not exit within %.0f s", version, grace[version])
                process.kill()
                process.wait(5.0)
        self._checkpoints.save_newest(start + self._checkpoint_grace - time.monotonic())
        # A process that exited by itself a moment before keeps its own code.
        if training in ended:
            code = ended[training].code or 0
        if code == TERMINATED:
            # Before the job trains, the newest process counts: its program may have formed its own group.
            newest = self._processes.get(max(self._processes, default=0))
            self._report_termination(self._processes.get(training, newest))
        return code

    @property
    def _checkpoint_grace(self) -> float:
        set_grace = self._settings.checkpoint_grace
        return max(LEAST_SAVE_GRACE, self._leave_inquiry.seconds) if set_grace is None else set_grace

    def _ask_to_leave(self) -> LeaveVerdict:
        return self._client.leave(LeaveReport(node=self._environment.node, incarnation=self._incarnation))

    def _report_termination(self, process: TrainingProcess | None) -> None:
        over = threading.Event()
        timer = threading.Timer(FAREWELL_SECONDS, over.set)
        timer.start()
        try:
            call_until_answered(
                lambda: self._client.exit(self._exit_report(process, TERMINATED, asked=True)), over
            )
        except EdlError as error:
            log.warning("%s", error)
        finally:
            timer.cancel()

    def _next_due(self) -> float | None:
        """Seconds until a delayed restart or a kill is due; None if none is."""
        due = [*self._restart_at.values(), *self._retiring.values(), self._checkpoints.waits_until]
        now = time.monotonic()
        later = [at - now for at in due if at > now]
        return min(later) + 0.01 if later else None

    def _register(self) -> Directive:
        registration = Registration(
            node=self._environment.node,
            rank=self._environment.rank,
            pod=self._environment.pod,
            incarnation=self._incarnation,
        )
        try:
            answer = self._client.register(registration)
        except ConflictError as error:  # this node's registration is wrong, and will stay wrong
            self._refuse(error)
            raise
        except (
            ForbiddenError
        ) as error:  # most likely a wrong token, but another job's master may answer briefly
            now = time.monotonic()
            self._forbidden_since = self._forbidden_since or now
            if now - self._forbidden_since > FORBIDDEN_SECONDS:
                self._refuse(error)
            raise
        self._forbidden_since = 0.0
        return answer

    def _refuse(self, error: EdlError) -> None:
        self._refusal = str(error)
        self._wake.set()

    def _exit_report(self, process: TrainingProcess | None, code: int, *, asked: bool = False) -> ExitReport:
        return ExitReport(
            node=self._environment.node,
            incarnation=self._incarnation,
            version=process.version if process is not None else 0,
            code=code,
            asked=asked,
            last_lines=process.last_lines if process is not None else "",
            own_copy=self._own_copy(code),
        )

    def _heartbeats(self) -> None:
        meter = UsageMeter(os.getpid())
        while not self._terminating.wait(self._settings.heartbeat):
            beat = Heartbeat(
                node=self._environment.node,
                incarnation=self._incarnation,
                usage=meter.read(),
                known=self._watch.latest.revision,
                own_copy=self._own_copy(),
                asks_to_leave=True,
            )
            try:
                self._watch.offer(self._client.heartbeat(beat))
            except EdlError as error:
                log.debug("%s", error)  # DirectiveWatch logs it as a warning
