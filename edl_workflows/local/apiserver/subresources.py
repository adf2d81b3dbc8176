"""Subresources of pods, Services and service accounts: logs, binding, eviction, proxy, tokens; and the scale
of any resource.

The pod runner registers a `LogProvider` for logs, the network a `ProxyProvider` for the proxy.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from edl_workflows.local.apiserver import auth, errors, requests, views
from edl_workflows.local.apiserver.objects import metadata, schemas
from edl_workflows.local.apiserver.objects.catalog import ServedResource
from edl_workflows.local.apiserver.objects.deletion import DeletionOptions
from edl_workflows.local.apiserver.objects.registry import Registry
from edl_workflows.local.apiserver.storage import revisions, store
from edl_workflows.local.apiserver.storage.revisions import Object, StoreKey


@dataclass(frozen=True)
class LogRequest:
    """The requested part of a container's output.

    Attributes:
        namespace: of the pod.
        pod: its name.
        uid: its uid, so that the output of an earlier pod of the same name is never shown.
        container: name of the container or init container.
        follow: continue as the output grows, until the container ends.
        previous: show the run before the last restart.
        tail_lines: only the last lines; None: all.
        since: only lines that were written at this time or later; None: all.
        limit_bytes: the most bytes to return; None: all.
        timestamps: prefix each line with its time.
        not_started: the error message for a container that has not started, from the pod's status.
    """

    namespace: str
    pod: str
    uid: str
    container: str
    follow: bool = False
    previous: bool = False
    tail_lines: int | None = None
    since: datetime | None = None
    limit_bytes: int | None = None
    timestamps: bool = False
    not_started: str = "is waiting to start: ContainerCreating"


LogProvider = Callable[[LogRequest], AsyncIterator[bytes]]
"""Returns an asynchronous generator of output. It may raise `ApiError` before its first piece, such as 400
for a container that has not started (``container "x" in pod "y" is waiting to start: ContainerCreating``)."""


@dataclass(frozen=True)
class ProxyRequest:
    """A GET of a program behind a Service.

    Attributes:
        namespace, service: of the Service.
        port: of the Service.
        path, query: for the program; the path begins with a slash.
        accept: media types that the caller accepts.
    """

    namespace: str
    service: str
    port: int
    path: str
    query: str
    accept: str


ProxyProvider = Callable[[ProxyRequest], Awaitable[Response]]
"""Answers with what the program answers. It may raise `ApiError`, such as 503 if there is none."""


def _container(pod: Object, requested: str) -> str:
    name = pod["metadata"]["name"]
    main = [container["name"] for container in pod["spec"].get("containers") or []]
    every = main + [container["name"] for container in pod["spec"].get("initContainers") or []]
    requested = requested or pod["metadata"].get("annotations", {}).get(
        "kubectl.kubernetes.io/default-container", ""
    )
    if not requested and len(every) > 1:
        raise errors.bad_request(
            f"a container name must be specified for pod {name}, choose one of: [{' '.join(every)}]"
        )
    if requested and requested not in every:
        raise errors.bad_request(f"container {requested} is not valid for pod {name}")
    return requested or main[0]


def _not_started(pod: Object, container: str) -> str:
    """The message for a container that has not started. It contains the reason from the pod's status: that of
    the container, the pod or the scheduler."""
    status = pod.get("status") or {}
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    states = (
        container_status.get("state") or {}
        for container_status in every
        if container_status["name"] == container
    )
    waiting: Object = next((state["waiting"] for state in states if "waiting" in state), {})
    conditions = status.get("conditions") or []
    unplaced: Object = next(
        (
            condition
            for condition in conditions
            if condition["type"] == "PodScheduled" and condition["status"] != "True"
        ),
        {},
    )
    source = next(
        (candidate for candidate in (waiting, status, unplaced) if candidate.get("message")), waiting
    )
    explanation = ": ".join(str(source[key]) for key in ("reason", "message") if source.get(key))
    ended = status.get("phase") in ("Failed", "Succeeded")
    return f"{'has not started' if ended else 'is waiting to start'}: {explanation or 'ContainerCreating'}"


def _since(query: Mapping[str, str], pod: str, now: datetime) -> datetime | None:
    seconds, time = requests.read_number(query, "sinceSeconds"), query.get("sinceTime")
    causes = []
    if seconds is not None and time:
        message = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"
        causes.append(errors.Cause("FieldValueForbidden", message, ""))
    elif seconds == 0:
        message = "Invalid value: 0: must be greater than 0"
        causes.append(errors.Cause("FieldValueInvalid", message, "sinceSeconds"))
    if causes:
        raise errors.invalid_error("", "PodLogOptions", pod, causes)
    try:
        since = (
            datetime.fromisoformat(time) if time else now - timedelta(seconds=seconds) if seconds else None
        )
        return since.replace(tzinfo=since.tzinfo or UTC) if since else None
    except (ValueError, OverflowError) as error:
        raise errors.bad_request(f"sinceTime or sinceSeconds is not a time: {error}") from error


async def logs(
    objects: store.ObjectStore,
    provider: LogProvider | None,
    target: requests.RequestTarget,
    query: Mapping[str, str],
) -> Response:
    """Answer ``pods/NAME/log``.

    Raises:
        ApiError: 404, no such pod; 400, no such container, or it has not started; 422, the start time is
            given twice or is not positive; 503, no runner serves this cluster.
    """
    pod = objects.require(StoreKey("pods", target.namespace, target.name)).decode()
    container = _container(pod, query.get("container", ""))
    request = LogRequest(
        namespace=target.namespace,
        pod=target.name,
        uid=pod["metadata"]["uid"],
        container=container,
        follow=requests.read_flag(query, "follow"),
        previous=requests.read_flag(query, "previous"),
        tail_lines=requests.read_number(query, "tailLines"),
        since=_since(query, target.name, datetime.now(UTC)),
        limit_bytes=requests.read_number(query, "limitBytes"),
        timestamps=requests.read_flag(query, "timestamps"),
        not_started=_not_started(pod, container),
    )
    if provider is None:
        raise errors.ApiError(
            503, "ServiceUnavailable", f"no pod runner serves the logs of pod {target.name}"
        )
    pieces = provider(request)
    first = await anext(pieces, b"")  # raises an `ApiError` before the response's head is sent

    async def stream() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return StreamingResponse(stream(), media_type="text/plain")


async def proxy(
    objects: store.ObjectStore,
    provider: ProxyProvider | None,
    target: requests.RequestTarget,
    request: Request,
) -> Response:
    """Answer ``services/NAME:PORT/proxy/PATH``. Of the caller's headers only ``Accept`` goes on.

    Raises:
        ApiError: 400, the Service has no such port, or HTTPS is asked for; 404, there is no such Service;
            503, no program behind it answers.
    """
    scheme, name, port = _proxy_parts(target.name)
    if scheme not in ("", "http"):
        raise errors.bad_request(f"scheme {scheme!r} is not served by the embedded cluster: use http")
    service = objects.require(StoreKey("services", target.namespace, name)).decode()
    served = service["spec"].get("ports") or []
    numbers = [entry["port"] for entry in served if port in ("", str(entry["port"]), entry.get("name"))]
    if not numbers:
        raise errors.bad_request(f'no service port {port!r} found for service "{name}"')
    if provider is None:
        raise errors.ApiError(503, "ServiceUnavailable", f"no network serves Service {name}")
    path = "/".join(request.url.path.lstrip("/").split("/", 7)[7:])
    accept = request.headers.get("accept", "*/*")
    forwarded = ProxyRequest(target.namespace, name, numbers[0], f"/{path}", request.url.query, accept)
    return await provider(forwarded)


def _proxy_parts(text: str) -> tuple[str, str, str]:
    """Scheme, name and port of ``NAME``, ``NAME:PORT`` or ``SCHEME:NAME:PORT``."""
    parts = text.split(":")
    if len(parts) == 3:
        return parts[0], parts[1], parts[2]
    return "", parts[0], ":".join(parts[1:])


def bind_pod(registry: Registry, target: requests.RequestTarget, body: Object) -> Response:
    """Answer ``pods/NAME/binding``.

    Raises:
        ApiError: 400, no node is named; 404; 409.
    """
    node = requests.object_field(body, "target").get("name")
    if not node:
        raise errors.bad_request("target.name: Required value")
    registry.bind(target.namespace, target.name, str(node))
    return views.json_response(revisions.encode_object(success_status({})), 201)


def evict_pod(registry: Registry, target: requests.RequestTarget, body: Object) -> Response:
    """Answer ``pods/NAME/eviction``: delete the pod, as there are no disruption budgets.

    Raises:
        ApiError: 404.
    """
    grace = requests.grace_seconds(requests.object_field(body, "deleteOptions").get("gracePeriodSeconds"))
    registry.delete(target.resource, target.namespace, target.name, DeletionOptions(grace=grace))
    return views.json_response(revisions.encode_object(success_status({})), 201)


def issue_token(authenticator: auth.Authenticator, target: requests.RequestTarget, body: Object) -> Response:
    """Answer ``serviceaccounts/NAME/token``.

    Raises:
        ApiError: 404; 422, the requested lifetime is too short or too long.
    """
    seconds = requests.object_field(body, "spec").get("expirationSeconds") or auth.DEFAULT_TOKEN_SECONDS
    if not isinstance(seconds, int) or not auth.MIN_TOKEN_SECONDS <= seconds <= auth.MAX_TOKEN_SECONDS:
        message = (
            f"Invalid value: {seconds}: may not specify a duration less than 10 minutes or more than "
            "2^32 seconds"
        )
        cause = errors.Cause("FieldValueInvalid", message, "spec.expirationSeconds")
        raise errors.invalid_error("authentication.k8s.io", "TokenRequest", target.name, [cause])
    token, expires = authenticator.issue(target.namespace, target.name, seconds)
    answer = {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {
            "name": target.name,
            "namespace": target.namespace,
            "creationTimestamp": metadata.format_time(datetime.now(UTC)),
        },
        "spec": {"audiences": [], "expirationSeconds": seconds},
        "status": {
            "token": token,
            "expirationTimestamp": metadata.format_time(datetime.fromtimestamp(expires, UTC)),
        },
    }
    return views.json_response(revisions.encode_object(answer), 201)


def success_status(details: Object) -> Object:
    """The ``Status`` for a successful request that has no object to return."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return {**status, "details": details} if details else status


def read_scale(resource: ServedResource, obj: Object) -> Object:
    """The ``Scale`` of an object whose resource has that subresource."""
    paths = resource.scale
    assert paths is not None
    meta = {
        field: obj["metadata"][field]
        for field in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if field in obj["metadata"]
    }
    status: Object = {"replicas": schemas.value_at_path(obj, paths.status_path) or 0}
    selector = schemas.value_at_path(obj, paths.selector_path) if paths.selector_path else None
    if selector:
        status["selector"] = selector
    spec = {"replicas": schemas.value_at_path(obj, paths.spec_path) or 0}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def scale_change(resource: ServedResource, change: Callable[[Object], Object]) -> Callable[[Object], Object]:
    """Turn a `change` of a ``Scale`` into a change of the scaled object."""

    def write(obj: Object) -> Object:
        paths = resource.scale
        assert paths is not None
        scale = change(read_scale(resource, obj))
        replicas = (scale.get("spec") or {}).get("replicas", 0)
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
            message = f"Invalid value: {replicas!r}: must be greater than or equal to 0"
            cause = errors.Cause("FieldValueInvalid", message, "spec.replicas")
            raise errors.invalid_error("autoscaling", "Scale", obj["metadata"]["name"], [cause])
        schemas.set_at_path(obj, paths.spec_path, replicas)
        for field in ("resourceVersion", "uid"):  # preconditions, if the client sent them
            if value := (scale.get("metadata") or {}).get(field):
                obj["metadata"][field] = value
        return obj

    return write
