"""The least time that many jobs need on a control plane: a client in Go, without watches and decisions,
writes what our controller, the masters and the users of these jobs write, as fast as the API server takes it.

What it writes is recorded from one job of ours, so both create the same objects and write the same statuses:
`differing_objects` compares what is stored at last, `Result.writes` counts the requests.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from edl_workflows.core.exceptions import EdlError
from edl_workflows.runtime.kube import transport
from edl_workflows.runtime.kube.connect import Cluster
from tests.benchmarks.cluster import load
from tests.benchmarks.cluster.load import Contender
from tests.benchmarks.cluster.plane import LIMIT, Binaries, Plane

WORKERS = 32
"""Jobs that the client writes at the same time."""
RECORDED_JOB = "recorded-job"
PODS = 4
_VERBS = {"create": "POST", "patch": "PATCH", "update": "PUT", "delete": "DELETE"}
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RANDOM = re.compile(rf"{_UID.pattern}|kube-api-access-\w{{5}}|\d{{4}}-\d\d-\d\dT[0-9:.]+Z|10(\.\d+){{3}}")
"""uids, names of volumes, times and addresses."""
_OF_THE_SERVER = frozenset({"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"})


@dataclass(frozen=True)
class Write:
    """One request; `../limit_client/main.go` replaces what is between @ signs."""

    verb: str
    uri: str
    content_type: str
    body: str


def read_recording(entries: Iterable[dict[str, Any]], job: str) -> list[Write]:
    """The writes about a job, in order.

    Args:
        entries: of an audit log with bodies of requests and answers.
        job: its name, which is part of no other word.

    Raises:
        EdlError: a body names an object that the recorded writes did not create.
    """
    found = sorted(
        (entry for entry in entries if entry["verb"] in _VERBS and job in json.dumps(entry)),
        key=lambda entry: datetime.fromisoformat(entry["requestReceivedTimestamp"]),
    )
    writes: list[Write] = []
    uids: dict[str, str] = {}
    for entry in found:
        body = dict(entry.get("requestObject") or {})
        if "resourceVersion" in (metadata := dict(body.get("metadata") or {})):
            body["metadata"] = metadata | {"resourceVersion": "@VERSION@"}
        text = json.dumps(body).replace(job, "@JOB@")
        for uid, mark in uids.items():
            text = text.replace(uid, mark)
        if foreign := _UID.search(text):
            raise EdlError(f"cannot replay {entry['requestURI']}: nobody recorded who has uid {foreign[0]}")
        verb = _VERBS[entry["verb"]]
        kind = transport.MERGE_PATCH if verb == "PATCH" else "application/json"
        uids.setdefault(entry["responseObject"]["metadata"]["uid"], f"@UID{len(writes)}@")
        writes.append(Write(verb, entry["requestURI"].replace(job, "@JOB@"), kind, text))
    return writes


def record(contender: Contender, binaries: Binaries) -> list[Write]:
    """What one job of a contender needs, on a control plane of its own."""
    with load.started(contender, binaries, "RequestResponse") as plane:
        offset = plane.audit_log.stat().st_size
        contender.run(plane, [RECORDED_JOB])
        time.sleep(load.SETTLE_SECONDS)
        with plane.audit_log.open("rb") as log:
            log.seek(offset)
            entries = [json.loads(line) for line in log]
    return read_recording(entries, RECORDED_JOB)


def limit_of(contender: Contender, writes: Sequence[Write], binaries: Binaries) -> Contender:
    """The limit client, which writes for each job what was recorded.

    Args:
        contender: whose job was recorded.
        writes: see `record`.
        binaries: the limit client's among them.
    """

    def run(plane: Plane, jobs: Sequence[str]) -> float:
        recording = plane.folder / "recording.json"
        recording.write_text(json.dumps({"writes": list(map(asdict, writes)), "pods": PODS, "jobs": jobs}))
        command = [str(binaries.limit), str(plane.kubeconfig(LIMIT)), str(recording), str(WORKERS)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=load.PATIENCE)
        return float(json.loads(done.stdout)["running"])

    return Contender(f"limit of {contender.name}", LIMIT, contender.crds, lambda *_: None, (), run)


def stored_objects(cluster: Cluster, writes: Sequence[Write], job: str) -> dict[str, str]:
    """What the writes for a job left in the cluster, by path, without what the server adds."""
    paths = {path: None for write in writes for path in _path(write)}
    return {path: _comparable(_read(cluster, path.replace("@JOB@", job)), job) for path in paths}


def differing_objects(ours: Mapping[str, str], limit: Mapping[str, str]) -> list[str]:
    """The paths of objects that are not the same in both."""
    return sorted(path for path in ours.keys() | limit.keys() if ours.get(path) != limit.get(path))


def count_more(ours: Mapping[str, int], limit: Mapping[str, int]) -> dict[str, int]:
    """How many writes of each kind ours has more than the limit client, or fewer."""
    more = {kind: ours.get(kind, 0) - limit.get(kind, 0) for kind in ours.keys() | limit.keys()}
    return {kind: count for kind, count in sorted(more.items()) if count}


def _path(write: Write) -> Iterator[str]:
    path = write.uri.partition("?")[0].removesuffix("/status")
    name = (json.loads(write.body).get("metadata") or {}).get("name")
    yield f"{path}/{name}" if write.verb == "POST" else path


def _read(cluster: Cluster, path: str) -> Any:
    return transport.send(cluster, transport.ApiRequest("get", "", path, f"get {path}"))


def _comparable(obj: dict[str, Any], job: str) -> str:
    """An object without its job's name, its identity and its times; of a pod without its node and the status,
    which KWOK writes; of a Secret without the random token."""
    obj["metadata"] = {key: value for key, value in obj["metadata"].items() if key not in _OF_THE_SERVER}
    if obj["kind"] == "Pod":
        del obj["status"]
        obj["spec"].pop("nodeName", None)
    if obj["kind"] == "Secret":
        obj["data"] = sorted(obj["data"])
    return _RANDOM.sub("RANDOM", json.dumps(obj, sort_keys=True)).replace(job, "@JOB@")
