"""OpenLineage's events as a transport received them, checked against the classes that OpenLineage's client
has for its schema."""

import json
import types
import typing
from collections.abc import Callable
from datetime import datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import attr
from openlineage.client import generated
from openlineage.client.event_v2 import RunEvent

FACETS = "https://openlineage.io/spec/facets/"


def read_events(file: Path) -> list[dict[str, Any]]:
    """All events that a file transport has written, oldest first, each of them checked. It writes a file for
    each event (``append: False``): lines that several processes append to one file are torn.

    Args:
        file: the transport's ``log_file_path``.
    """
    texts = [part.read_text() for part in sorted(file.parent.glob(f"{file.name}-*"))]
    # A file without a line feed at its end is being written, or its writer was killed.
    events: list[dict[str, Any]] = [json.loads(text) for text in texts if text.endswith("\n")]
    for event in events:
        check_event(event)
    return events


def check_event(event: dict[str, Any]) -> None:
    """Build the event of its JSON: a field that the schema lacks, one that it requires, a wrong type, time or
    run id is an error."""
    assert event["eventType"] in {"START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"}
    _build(RunEvent, {name: value for name, value in event.items() if name != "eventType"}, "event")
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None


@cache
def _facet_classes() -> dict[str, type]:
    """Schema URL → class, of all facets of the specification."""
    modules = [import_module(f"{generated.__name__}.{one.name}") for one in iter_modules(generated.__path__)]
    classes = [found for one in modules for found in vars(one).values() if isinstance(found, type)]
    facets = [found for found in classes if attr.has(found) and issubclass(found, generated.base.BaseFacet)]
    return {found._get_schema(): found for found in facets}


def _build(wanted: type, value: Any, path: str) -> Any:
    """An object of an attrs class; the client's own validators run."""
    assert isinstance(value, dict), f"{path}: {value!r}"
    hints = typing.get_type_hints(wanted)
    fields = {field.name: field for field in attr.fields(wanted)}
    assert value.keys() <= fields.keys(), f"{path}: unknown {value.keys() - fields.keys()}"
    given = {
        name: _typed(hints[name], one, f"{path}.{name}")
        for name, one in value.items()
        if fields[name].init and one is not None
    }
    made = wanted(**{name.lstrip("_"): one for name, one in given.items()})
    for name in ("_schemaURL", "schemaURL"):
        assert name not in value or value[name] == getattr(made, name), f"{path}.{name}"
    return made


def _typed(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        hint = next(one for one in arguments if one is not type(None))
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return [_typed(arguments[0], one, f"{path}[]") for one in value]
    if origin is dict:
        build: Callable[[Any, str], Any] = _facet if path.lower().endswith("facets") else lambda one, _: one
        return {name: build(one, f"{path}.{name}") for name, one in value.items()}
    if attr.has(hint):
        return _build(hint, value, path)
    assert not isinstance(hint, type) or hint is object or isinstance(value, hint), f"{path}: {value!r}"
    return value


def _facet(value: Any, path: str) -> Any:
    """A facet of the specification by its class; of one of Airflow's, what all facets have."""
    schema = value["_schemaURL"]
    assert value["_producer"].startswith("https://"), path
    if schema.startswith(FACETS):
        return _build(_facet_classes()[schema], value, path)
    assert schema.startswith("https://"), path
    return value
