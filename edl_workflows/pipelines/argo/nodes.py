"""A Workflow's nodes as its status holds them: plain or compressed. A large workflow's nodes may also be in a
database."""

import base64
import binascii
import gzip
import json
from collections.abc import Mapping
from typing import Any


def nodes_of(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The nodes by id; None if they can't be read: in a database, or compressed by other means than gzip."""
    compressed = status.get("compressedNodes")
    if not compressed:
        return None if status.get("offloadNodeStatusVersion") else status.get("nodes") or {}
    try:
        nodes = json.loads(gzip.decompress(base64.b64decode(compressed)))
    except (OSError, EOFError, ValueError, binascii.Error):
        return None
    return nodes if isinstance(nodes, dict) else None
