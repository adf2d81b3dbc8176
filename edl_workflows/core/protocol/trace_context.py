"""Trace context (W3C, https://www.w3.org/TR/trace-context/#traceparent-header): which trace a job belongs to.
Pure.

A pipeline engine that traces its runs provides the trace. It is passed on in an annotation of the job and in
the variable ``TRACEPARENT`` of its pods, where OpenTelemetry's instrumentation of a training program finds
it. This package creates no spans.
"""

import hashlib
import re

_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")


def checked_traceparent(text: str) -> str:
    """The text if it is a ``traceparent``, else ""."""
    return text if _TRACEPARENT.fullmatch(text) else ""


def trace_id_of(traceparent: str) -> str:
    """The id of the trace: 32 hexadecimal digits; "" if the text is no ``traceparent``."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return match.group(1) if match else ""


def traceparent_of(trace_id: str, subject: str) -> str:
    """A ``traceparent`` for a trace of which only the id is known.

    Args:
        trace_id: the trace's; anything malformed gives "".
        subject: what the job is a part of. The id of the parent span is derived from it; no span with this id
            exists.
    """
    if not _TRACE_ID.fullmatch(trace_id):
        return ""
    return f"00-{trace_id}-{hashlib.sha256(subject.encode()).hexdigest()[:16]}-01"
