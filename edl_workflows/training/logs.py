"""Structured logs of a training pod: one JSON object per line, with the same fields as the master's log.

For training code::

    job = connect()
    logging.basicConfig(level=logging.INFO, handlers=[json_lines(job.environment, job.version)])
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.trace_context import trace_id_of
from edl_workflows.training.environment import NodeEnvironment


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON with the fields event, level, logger, timestamp, job, namespace, pod, node,
    rank and version, and with ``trace_id`` if the job belongs to a trace.

    Args:
        environment: the pod's environment.
        version: returns the cluster version; 0 for none.
    """

    def __init__(self, environment: NodeEnvironment, version: Callable[[], int]) -> None:
        super().__init__()
        self._whose = {
            "job": environment.job,
            "namespace": environment.namespace,
            "pod": environment.pod,
            "node": str(environment.node),
            "rank": environment.rank,
        }
        if trace_id := trace_id_of(os.environ.get(names.ENV_TRACEPARENT, "")):
            self._whose["trace_id"] = trace_id
        self._version = version

    def format(self, record: logging.LogRecord) -> str:
        """The line, without a line break."""
        line = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            **self._whose,
            "version": self._version(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def json_lines(
    environment: NodeEnvironment, version: int | Callable[[], int]
) -> "logging.StreamHandler[TextIO]":
    """A handler that writes JSON lines to stderr.

    Args:
        environment: the pod's environment (`Job.environment`).
        version: the cluster version (`Job.version`), or a function that returns it.
    """
    handler: logging.StreamHandler[TextIO] = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(environment, version if callable(version) else lambda: version))
    return handler
