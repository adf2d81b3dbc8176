"""A running test cluster as the tests see it. ``bed.json`` beside its kubeconfig says what it is made of."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from tests.cluster.bed.images import PROGRAMS
from tests.cluster.bed.process import BedError, Daemon
from tests.cluster.bed.wait import until

_FILE = "bed.json"


@dataclass(frozen=True)
class Bed:
    """One Kubernetes cluster with Argo in it.

    A cluster that the tests did not start may lack what only its owner has (an audit log, a way to restart
    its API server): a test that asks for such a thing is skipped.

    Attributes:
        kubeconfig: the administrator's.
        image: what a pod's containers name as their image; with `imagePullPolicy: Never`.
        python: the interpreter in pods that has edl_workflows and its extras.
        folder: with logs and pid files; None for a foreign cluster.
        data: folder of the machine that pods may mount by hostPath, at the same path.
        daemons: what runs, by name: etcd, apiserver, kcm, sched, containerd, kubelet, proxy, coredns, argo.
        enter: command prefix that takes a command into the node's network namespace.
    """

    kubeconfig: Path
    image: str
    python: str
    folder: Path | None = None
    data: Path | None = None
    daemons: tuple[Daemon, ...] = ()
    enter: tuple[str, ...] = ()

    @classmethod
    def load(cls, kubeconfig: Path) -> Self:
        """The bed of a kubeconfig.

        Raises:
            BedError: there is no ``bed.json`` beside it.
        """
        file = kubeconfig.parent / _FILE
        if not file.exists():
            raise BedError(
                f"no test bed at {file.parent}: {file} is missing; start one with `make cluster-up`"
            )
        values: dict[str, Any] = json.loads(file.read_text())
        folder, enter = file.parent, tuple(values["enter"])
        daemons = tuple(
            Daemon(name, tuple(one["command"]), folder, one["env"], enter)
            for name, one in values["daemons"].items()
        )
        return cls(
            kubeconfig, values["image"], values["python"], folder, Path(values["data"]), daemons, enter
        )

    def save(self) -> None:
        """Write ``bed.json``, whole or not at all."""
        values = {
            "image": self.image,
            "python": self.python,
            "data": str(self.data),
            "enter": self.enter,
            "daemons": {one.name: {"command": one.command, "env": one.env} for one in self.daemons},
        }
        draft = self.kubeconfig.parent / f"{_FILE}.new"
        draft.write_text(json.dumps(values, indent=1))
        draft.replace(draft.with_name(_FILE))

    @property
    def audit_log(self) -> Path:
        """One JSON object a line for each request that the API server completed; metadata only."""
        return self._own("an audit log") / "log" / "audit.jsonl"

    @property
    def data_dir(self) -> Path:
        """Where pods and tests exchange files: hostPath volumes whose mountPath equals their path."""
        self._own("a shared folder")
        assert self.data is not None
        return self.data

    @property
    def programs(self) -> str:
        """Where containers find the bed's own programs, such as ``gofakes3``."""
        self._own("an S3 server")
        return PROGRAMS

    def log(self, name: str) -> Path:
        """The log of one daemon."""
        return self.daemon(name).log

    def daemon(self, name: str) -> Daemon:
        """One of the cluster's programs, to stop and start it."""
        self._own(f"a {name} that a test may touch")
        return next(one for one in self.daemons if one.name == name)

    def restart_apiserver(self) -> None:
        """Kill the API server and start it again; returns when it is ready."""
        self._restart("apiserver")
        self.wait_ready()

    def restart_argo(self) -> None:
        """Kill Argo's workflow controller and start it again; returns when it has started."""
        self._restart("argo")

    def _restart(self, name: str) -> None:
        daemon = self.daemon(name)
        daemon.stop(kill=True)
        daemon.start()

    def wait_ready(self, seconds: float = 120) -> None:
        """Wait until the API server is ready.

        Raises:
            BedError: it was not in `seconds`.
        """
        until(lambda: self.succeeds("get", "--raw", "/readyz"), "the API server is ready", seconds)

    def succeeds(self, *arguments: str) -> bool:
        """Whether a kubectl command succeeds now."""
        return self._kubectl(*arguments).returncode == 0

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What a kubectl command prints.

        Raises:
            BedError: it failed; with what it said.
        """
        done = self._kubectl(*arguments, stdin=stdin)
        if done.returncode:
            raise BedError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def _kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True)

    def token(self, namespace: str, account: str) -> str:
        """A token of a service account, good for an hour."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
        answer = json.loads(self.kubectl("create", "--raw", path, "-f", "-", stdin=request))
        return str(answer["status"]["token"])

    def run_on_node(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the node's network, as `iptables` to cut a connection.

        Raises:
            BedError: it failed; with what it said.
        """
        self._own("a node that a test may touch")
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True)
        if done.returncode:
            raise BedError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done

    def _own(self, what: str) -> Path:
        if self.folder is None:
            pytest.skip(f"the cluster of {self.kubeconfig} was not started by `make cluster-up`: no {what}")
        return self.folder
