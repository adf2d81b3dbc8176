"""Rules about CronWorkflows: when they run."""

import functools
import re
import zoneinfo
from collections.abc import Iterator

from edl_workflows.core.schemas.structural import Path
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.rules.durations import is_duration
from edl_workflows.pipelines.argo.lint.workflow import Spec, as_mapping, as_text

SCHEDULE = Rule(
    "cron-schedule",
    Severity.ERROR,
    "A schedule that is not a cron expression (minute, hour, day of month, month and day of week, each "
    "within its bounds), nor @daily or the like.",
    "Write it like `0 2 * * 1-5`.",
)
TIMEZONE = Rule(
    "cron-timezone",
    Severity.ERROR,
    "A time zone that does not exist.",
    "Use a name from the IANA list, such as Europe/Zurich.",
)
RULES = (SCHEDULE, TIMEZONE)

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS: tuple[tuple[str, int, int, list[str]], ...] = (
    ("minute", 0, 59, []), ("hour", 0, 23, []), ("day of month", 1, 31, []), ("month", 1, 12, _MONTHS),
    ("day of week", 0, 6, _DAYS),
)  # fmt: skip
_WORDS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")


def problem_of(schedule: str) -> str:
    """What is wrong with a schedule; empty if it is valid."""
    if schedule.startswith("@"):
        every, _, duration = schedule.partition(" ")
        if schedule in _WORDS or (
            every == "@every" and duration and is_duration(duration.strip(), bare=False)
        ):
            return ""
        return f"there is no {schedule!r}"
    fields = schedule.split()
    if len(fields) != len(_FIELDS):
        return f"it has {len(fields)} fields instead of {len(_FIELDS)}"
    for value, (name, low, high, words) in zip(fields, _FIELDS, strict=True):
        for part in value.split(","):
            if problem := _part(part, low, high, words):
                return f"{name}: {problem}"
    return ""


def _part(part: str, low: int, high: int, words: list[str]) -> str:
    spread, slash, step = part.partition("/")
    if slash and not (step.isdigit() and int(step) > 0):
        return f"the step in {part!r} is not a positive number"
    if spread in ("*", "?"):
        return ""
    ends = [_number(end, low, words) for end in spread.split("-")]
    if len(ends) > 2 or any(end is None for end in ends):
        return f"{part!r} is not a number or range"
    bounds = [end for end in ends if end is not None]
    if any(not low <= end <= high for end in bounds):
        return f"{part!r} is not within {low}-{high}"
    return f"the range {part!r} ends before it starts" if bounds[0] > bounds[-1] else ""


def _number(value: str, low: int, words: list[str]) -> int | None:
    if value.lower() in words:
        return words.index(value.lower()) + low
    return int(value) if re.fullmatch(r"\d{1,3}", value) else None


def _cron(spec: Spec) -> Iterator[Finding]:
    if spec.kind != "CronWorkflow":
        return
    body = as_mapping(spec.manifest.get("spec"))
    schedules = body.get("schedules")
    path: Path = ("spec", "schedules")
    if isinstance(schedules, list):
        for index, schedule in enumerate(schedules):
            if isinstance(schedule, str) and (problem := problem_of(schedule)):
                yield SCHEDULE.at((*path, index), f"{schedule!r}: {problem}")
        if not schedules:
            yield SCHEDULE.at(path, "there is no schedule")
    zone = as_text(body.get("timezone"))
    if zone and zone not in ("Local", "UTC") and _zones() and zone not in _zones():
        yield TIMEZONE.at(("spec", "timezone"), f"there is no time zone {zone!r}")


@functools.cache
def _zones() -> frozenset[str]:
    """Names of the time zones in the machine's database; empty if it has none."""
    return frozenset(zoneinfo.available_timezones())


CHECKS = (_cron,)
