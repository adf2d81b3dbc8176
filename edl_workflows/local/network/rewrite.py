"""Finds cluster addresses in text and replaces them: environment values and arguments of a container."""

import re
from collections.abc import Callable

from edl_workflows.protocol.addresses import canonical_host

_ADDRESS = re.compile(
    r"(?<![\w.-])(?P<host>[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*\.?):(?P<port>\d{1,5})(?!\d)",
    re.IGNORECASE,
)

Lookup = Callable[[str, int, bool], str | None]
"""(canonical host, port, whether the text spelled it as a Service with ``.svc``) → the address instead, or None."""


def rewrite(text: str, namespace: str, lookup: Lookup) -> str:
    """The text with every address that `lookup` knows replaced; all else, other colons included, untouched.

    Args:
        text: ``ps-0.default.svc:2222,ps-1:2222``, a URL, a JSON document.
        namespace: of the pod, for short names.
        lookup: where an address leads.
    """

    def replace(match: re.Match[str]) -> str:
        host, port = match["host"], int(match["port"])
        if not 0 < port <= 65535:
            return match[0]
        explicit = bool(re.search(r"\.svc(\.cluster\.local)?\.?$", host, re.IGNORECASE))
        return lookup(canonical_host(host, namespace), port, explicit) or match[0]

    return _ADDRESS.sub(replace, text)
