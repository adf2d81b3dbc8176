"""Resolves cluster addresses, for code that runs both on a real cluster and on the embedded cluster.

The embedded cluster has no pod network: each port of a Service or pod is mapped to a port of the machine.
Addresses in a container's environment and arguments are rewritten when the container starts. An address that
is learned later, for example from a job's master, must be passed to `resolve`, and a server must ask `listen`
where to bind. On a real cluster, neither function changes anything.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.addresses import (
    NAMESPACE_VARIABLE,
    PORT_VARIABLE_PREFIX,
    SERVICE_MAP_VARIABLE,
    canonical_host,
)
from edl_workflows.core.protocol.message import describe_problems

_AUTHORITY = re.compile(
    r"^(?P<scheme>[a-z][a-z0-9+.-]*://)?(?P<host>[^/:]+):(?P<port>\d+)(?P<rest>/.*)?$", re.IGNORECASE
)
_MAP = TypeAdapter(dict[str, str])


def resolve(address: str) -> str:
    """The address at which this process can reach `address`. In the embedded cluster,
    `ps-0.default.svc:2222` becomes, for example, `127.0.0.1:31007`.

    Args:
        address: `host:port`, or a URL with a port.

    Returns:
        The rewritten address; `address` itself outside the embedded cluster, or if that cluster does not know
        it (yet).

    Raises:
        InvalidError: the map can't be read.
    """
    return resolve_all([address])[0]


def resolve_all(addresses: Iterable[str]) -> list[str]:
    """The same for several addresses, such as those of all members of a job: the map is read once.

    Raises:
        InvalidError: the map can't be read.
    """
    path = os.environ.get(SERVICE_MAP_VARIABLE)
    matches = [(address, _AUTHORITY.match(address) if path else None) for address in addresses]
    if not path or not any(match for _, match in matches):
        return [address for address, _ in matches]
    services, namespace = _load(path), os.environ.get(NAMESPACE_VARIABLE, "default")
    return [address if match is None else _rewrite(match, services, namespace) for address, match in matches]


def _rewrite(match: re.Match[str], services: dict[str, str], namespace: str) -> str:
    mapped_address = services.get(f"{canonical_host(match['host'], namespace)}:{match['port']}")
    return f"{match['scheme'] or ''}{mapped_address}{match['rest'] or ''}" if mapped_address else match[0]


def listen(port: int) -> tuple[str, int]:
    """Host and port to bind for a container's port: all interfaces on a real cluster, the assigned port on
    the embedded one.

    Raises:
        InvalidError: in the embedded cluster, the pod declares no such port, or its variable is not a port.
    """
    if SERVICE_MAP_VARIABLE not in os.environ:
        return "0.0.0.0", port  # noqa: S104 - a pod's own interface; the cluster decides who may reach it
    assigned = os.environ.get(f"{PORT_VARIABLE_PREFIX}{port}")
    if assigned is None:
        raise InvalidError(
            f"port {port} is not among the pod's ports; add it to ports[].containerPort of the container"
        )
    if not (assigned.isascii() and assigned.isdigit()):
        raise InvalidError(
            f"{PORT_VARIABLE_PREFIX}{port}={assigned}: not a port; leave it to the embedded cluster"
        )
    return "127.0.0.1", int(assigned)


def _load(path: str) -> dict[str, str]:
    # Read the map at each call: the cluster may have changed it, and it is small and local.
    try:
        return _MAP.validate_json(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise InvalidError(
            f"{SERVICE_MAP_VARIABLE}={path}: no such file; the embedded cluster is gone"
        ) from error
    except OSError as error:
        raise InvalidError(f"{SERVICE_MAP_VARIABLE}={path}: can't be read: {error.strerror}") from error
    except ValidationError as error:
        raise InvalidError(
            f"{SERVICE_MAP_VARIABLE}={path}: not a map of addresses ({describe_problems(error)[0]}); "
            "the embedded cluster sets the variable and writes the file: leave both to it"
        ) from error
