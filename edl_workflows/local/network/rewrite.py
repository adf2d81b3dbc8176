"""Replacement of cluster addresses in text: environment values and arguments of a container."""

import re
from collections.abc import Callable, Mapping

from edl_workflows.protocol.addresses import canonical_host

_ADDRESS = re.compile(
    r"(?<![\w.-])(?P<host>[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*\.?)"
    r":(?P<port>\d{1,5})(?!\d)",
    re.IGNORECASE,
)

Lookup = Callable[[str, int, bool], str | None]
"""Called with the canonical host, the port, and whether the text spelled the host as a Service with ``.svc``;
returns the replacement or None."""


def rewrite(text: str, namespace: str, lookup: Lookup) -> str:
    """Replace every address that `lookup` knows; the rest of the text, including other colons, stays.

    Args:
        text: ``ps-0.default.svc:2222,ps-1:2222``, a URL, a JSON document.
        namespace: of the pod, for short names.
        lookup: the replacement of an address.
    """

    def replace(match: re.Match[str]) -> str:
        host, port = match["host"], int(match["port"])
        if not 0 < port <= 65535:
            return match[0]
        explicit = bool(re.search(r"\.svc(\.cluster\.local)?\.?$", host, re.IGNORECASE))
        return lookup(canonical_host(host, namespace), port, explicit) or match[0]

    return _ADDRESS.sub(replace, text)


_HOST_VARIABLE = re.compile(r"^(?P<prefix>\w*?)(?:_ADDR|_ADDRESS|_HOST|_HOSTNAME|_IP)$")
_HOST = re.compile(r"^[a-z0-9][a-z0-9.-]*$", re.IGNORECASE)
_OWN = ("localhost", "127.0.0.1", "0.0.0.0")  # noqa: S104 - compared, not listened on


def rewrite_apart(
    env: Mapping[str, str], rewritten: Callable[[str], str], own_ports: Mapping[int, int]
) -> dict[str, str]:
    """Replace pairs of variables that hold a host and a port: ``MASTER_ADDR`` and ``MASTER_PORT``, and others
    that end in ``_ADDR``, ``_ADDRESS``, ``_HOST``, ``_HOSTNAME`` or ``_IP``, and in ``_PORT``.

    Args:
        env: variables that the user has set.
        rewritten: applies `rewrite` to a text.
        own_ports: by port of the pod, the port on which it must listen, for a host that is the pod itself.

    Returns:
        The variables that change.
    """
    found: dict[str, str] = {}
    for name, host in env.items():
        match = _HOST_VARIABLE.match(name)
        port_name = f"{match['prefix']}_PORT" if match else ""
        port = env.get(port_name, "")
        if not (port.isascii() and port.isdigit() and _HOST.match(host)):
            continue
        address = f"{host}:{port}"
        if host in _OWN:
            found[port_name] = str(own_ports.get(int(port), port))
        elif (changed := rewritten(address)) != address:
            found[name], _, found[port_name] = changed.rpartition(":")
    return found
