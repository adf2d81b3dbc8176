"""Replaces cluster addresses in text: environment variables and arguments of a container."""

import re
from collections.abc import Callable, Mapping

from edl_workflows.core.protocol.addresses import canonical_host

_ADDRESS = re.compile(
    r"(?<![\w.-])(?P<host>[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*\.?)"
    r":(?P<port>\d{1,5})(?!\d)",
    re.IGNORECASE,
)

Lookup = Callable[[str, int, bool], str | None]
"""Called with the canonical host, the port, and whether the text contains the host with ``.svc``; returns the
replacement or None."""


def rewrite_addresses(text: str, namespace: str, lookup: Lookup) -> str:
    """Replace every address that `lookup` knows. The rest of the text stays as it is.

    Args:
        text: for example ``ps-0.default.svc:2222,ps-1:2222``, a URL or a JSON document.
        namespace: the pod's namespace, for short names.
        lookup: returns the replacement of an address.
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
        env: the variables that the user has set.
        rewritten: applies `rewrite` to a text.
        own_ports: the host port for each port of the pod, used if the host is the pod itself.

    Returns:
        The variables that change, with their new values.
    """
    replacements: dict[str, str] = {}
    for name, host in env.items():
        match = _HOST_VARIABLE.match(name)
        port_name = f"{match['prefix']}_PORT" if match else ""
        port = env.get(port_name, "")
        if not (port.isascii() and port.isdigit() and _HOST.match(host)):
            continue
        address = f"{host}:{port}"
        if host in _OWN:
            replacements[port_name] = str(own_ports.get(int(port), port))
        elif (changed := rewritten(address)) != address:
            replacements[name], _, replacements[port_name] = changed.rpartition(":")
    return replacements
