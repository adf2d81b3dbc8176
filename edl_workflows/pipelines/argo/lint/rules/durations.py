"""Rules about times: how long something may take, and how a length of time is written."""

import re
from collections.abc import Iterator

from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.workflow import COMPOSITE, Spec, as_mapping, has_tag

BAD_DURATION = Rule(
    "bad-duration",
    Severity.ERROR,
    "A duration that Argo can't parse. A timeout needs a unit.",
    "Write it like 90s, 1h30m or 500ms. There is no unit for days.",
)
PENDING_TIMEOUT = Rule(
    "composite-pending-timeout",
    Severity.ERROR,
    "A steps or dag template has `pendingTimeout`, which only leaf templates support.",
    "Set pendingTimeout on the leaf templates.",
)
RULES = (BAD_DURATION, PENDING_TIMEOUT)

_DURATION = re.compile(r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+")
_SECONDS = re.compile(r"\d+")
_DEADLINE = re.compile(r"\+?\d+|-0+")


def is_duration(value: str, *, bare: bool) -> bool:
    """Whether a text is a duration in Go's notation or, if `bare`, a number of seconds."""
    return value in ("", "0") or bool(_DURATION.fullmatch(value) or (bare and _SECONDS.fullmatch(value)))


def _is_deadline(value: str) -> bool:
    """Whether a text is a non-negative integer, or begins and ends with a placeholder, so that its value is
    known only when the workflow runs."""
    return bool(_DEADLINE.fullmatch(value)) or (value.startswith("{{") and value.endswith("}}"))


def _times(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        backoff = ("retryStrategy", "backoff")
        places = (
            (("timeout",), False), (("pendingTimeout",), False), (("suspend", "duration"), True),
            ((*backoff, "duration"), True), ((*backoff, "maxDuration"), True), ((*backoff, "cap"), True),
            (("memoize", "maxAge"), False),
        )  # fmt: skip
        for steps, bare in places:
            value = template.body
            for step in steps[:-1]:
                value = as_mapping(value.get(step))
            duration = value.get(steps[-1])
            if isinstance(duration, str) and not has_tag(duration) and not is_duration(duration, bare=bare):
                yield BAD_DURATION.at((*template.path, *steps), f"{duration!r} is not a duration")
        deadline = template.body.get("activeDeadlineSeconds")
        if (
            isinstance(deadline, str | int)
            and not _is_deadline(str(deadline))
            and template.type not in COMPOSITE
        ):
            path = (*template.path, "activeDeadlineSeconds")
            yield BAD_DURATION.at(
                path,
                f"{deadline!r} is not a number of seconds, 0 or more",
                "Write it like 90, without a unit.",
            )
        if template.body.get("pendingTimeout") and template.type in COMPOSITE:
            yield PENDING_TIMEOUT.at((*template.path, "pendingTimeout"), f"{template} is a {template.type}")


CHECKS = (_times,)
