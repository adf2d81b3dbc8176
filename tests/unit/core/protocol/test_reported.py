"""What pods report: checkpoints by a bounded grammar, words without control characters or templates."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin
from unittest.mock import MagicMock

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.manifests import last_words
from edl_workflows.core.jobs.training_job.verdict import describe_end
from edl_workflows.core.protocol.datasets import FailedShard
from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.nodes import (
    CheckReport,
    CrashReport,
    ExitReport,
    Registration,
    ServerReport,
    StackReport,
)
from edl_workflows.core.protocol.reported_text import escape_controls, inert_text, inert_value
from edl_workflows.core.protocol.routes import ROUTES
from edl_workflows.core.protocol.training import (
    CheckpointDamage,
    CheckpointEnd,
    CheckpointRestore,
    Evaluation,
    ResultReport,
)
from edl_workflows.training.checkpoints.remote_store import open_store

WORKER = {"type": "worker", "id": 0}
PLACES = (
    "/work/run/step-00000100-a1b2",
    "s3://bucket/a-b_c/run=7/step-1",
    "abfs://container@account.dfs.core.windows.net/run",
    "file:///mnt/my%20runs/step-1",
    "hdfs://name:8020/runs/~me/step-1",
    "runs/step-1",
)
HOSTILE: Mapping[str, str] = {
    "quotes": "/work/'; id; echo '",
    "double quotes": '/work/"; id',
    "a substitution": "/work/$(id)",
    "backquotes": "/work/`id`",
    "Argo's template": "/work/{{workflow.name}}",
    "Airflow's template": "/work/{% raw %}",
    "two lines": "/work/a\nb",
    "a last line feed": "/work/a\n",
    "Escape": "/work/\x1b]0;title\x07",
    "NUL": "/work/\0",
    "a space": "/work/a b",
    "an option": "--rm",
    "a wild card": "/work/*",
    "a change of direction": "/work/\u202eabc",
    "no text of ASCII": "/work/données",
    "too long": "/" + "a" * 4096,
}


def messages(uri: str) -> dict[str, tuple[type[Message], dict[str, Any]]]:
    """Every message by which a pod names a checkpoint."""
    instead = {"uri": uri, "step": 1}
    damage = {"node": WORKER, "version": 1, "error": "torn"}
    return {
        "end": (CheckpointEnd, {"node": WORKER, "uri": uri, "step": 1}),
        "restore": (CheckpointRestore, {"node": WORKER, "version": 1, "uri": uri, "step": 1}),
        "damage": (CheckpointDamage, {**damage, "uri": uri}),
        "instead": (CheckpointDamage, {**damage, "uri": "/work", "instead": instead}),
    }


@pytest.mark.parametrize("message", messages(""))
@pytest.mark.parametrize("row", HOSTILE)
def test_a_hostile_checkpoint_is_refused(row: str, message: str) -> None:
    """In messages, checkpoints with characters that a shell, a template or a terminal would interpret are
    rejected."""
    model, body = messages(HOSTILE[row])[message]
    with pytest.raises(ValidationError, match=r"uri|instead"):
        model.model_validate_json(json.dumps(body))


@pytest.mark.parametrize("message", messages(""))
@pytest.mark.parametrize("uri", PLACES)
def test_a_folder_or_a_uri_is_taken(uri: str, message: str) -> None:
    """Folders and URIs by which stores name their checkpoints are accepted."""
    model, body = messages(uri)[message]
    model.model_validate_json(json.dumps(body))


@pytest.mark.parametrize("row", [row for row in HOSTILE if row not in ("an option", "a last line feed")])
def test_a_store_whose_checkpoints_would_be_refused_is_not_opened(row: str) -> None:
    """A store with an invalid URI is rejected when the program starts, not after hours of training."""
    with pytest.raises(InvalidError, match="the job's master would refuse them: letters, digits"):
        open_store(HOSTILE[row])


def words(text: str) -> dict[str, tuple[type[Message], dict[str, Any], str]]:
    """Every message in which a pod says words, and their field."""
    shard = {"epoch": 1, "ordinal": 0, "lease": 1}
    return {
        "the end of its output": (
            ExitReport,
            {"node": WORKER, "incarnation": "a", "version": 1, "code": 1, "last_lines": text},
            "last_lines",
        ),
        "why it failed to save": (CheckpointEnd, {"node": WORKER, "error": text}, "error"),
        "what is damaged": (
            CheckpointDamage,
            {"node": WORKER, "version": 1, "uri": "/work", "error": text},
            "error",
        ),
        "why a node did not measure": (CheckReport, {"node": WORKER, "round": 1, "error": text}, "error"),
        "why servers must stay": (ServerReport, {"changes": "Never", "reason": text}, "reason"),
        "why there is no value": (Evaluation, {"problem": text}, "problem"),
        "why a shard failed": (FailedShard, {**shard, "message": text}, "message"),
    }


@pytest.mark.parametrize("row", words(""))
def test_words_are_kept_without_what_acts(row: str) -> None:
    """Control characters and template tags in a report are escaped, so that the report is not lost."""
    model, body, field = words("a\x1b[2J {{workflow.name}}\n\tb\u202e\x9b")[row]
    said = model.model_validate_json(json.dumps(body))
    assert getattr(said, field) == "a\\x1b[2J { {workflow.name}}\n\tb\\u202e\\x9b"


@pytest.mark.parametrize("row", words(""))
def test_words_of_the_greatest_length_are_taken(row: str) -> None:
    """Escapes do not count towards the maximal length of a text."""
    model, _, field = words("")[row]
    length = {"last_lines": 8192}.get(field, 4096 if model in (CheckpointEnd, CheckpointDamage) else 1024)
    for text, taken in (("\x1b" * length, True), ("a" * (length + 1), False)):
        body = words(text)[row][1]
        if taken:
            model.model_validate(body)
        else:
            with pytest.raises(ValidationError, match="at most"):
                model.model_validate(body)


@pytest.mark.parametrize("row", words(""))
@pytest.mark.parametrize("hostile", ["\x1b", "{", "\U000e0001"])
def test_words_that_were_read_can_be_written_and_read_again(row: str, hostile: str) -> None:
    """A message that was read can be written and read again: escapes do not make it too long for the master
    or for its stored state."""
    model, _, field = words("")[row]
    length = {"last_lines": 8192}.get(field, 4096 if model in (CheckpointEnd, CheckpointDamage) else 1024)
    said = model.model_validate(words(hostile * length)[row][1])
    assert model.model_validate_json(said.model_dump_json()) == said


def test_of_output_the_end_is_kept() -> None:
    """Of a program's output the end is kept, even after many colour codes, since it has the error."""
    said = ExitReport.model_validate(
        words("\x1b[31m" * 1600 + "ValueError: no data")["the end of its output"][1]
    )
    assert len(said.last_lines) == 8192
    assert said.last_lines.endswith("ValueError: no data")


@pytest.mark.parametrize(("field", "value"), [("pod", "a\nb"), ("pod", "{{a}}"), ("incarnation", "a\x1b")])
def test_names_are_names(field: str, value: str) -> None:
    """Names with control characters or templates are rejected."""
    body = {"node": WORKER, "rank": 0, "pod": "a", "incarnation": "a", field: value}
    with pytest.raises(ValidationError, match=field):
        Registration.model_validate(body)


def test_ordinary_text_is_as_it_was() -> None:
    """Letters of any script, emoji with their joiners, and single braces do not change."""
    text = "Größe {a: {b: 1}} 训练 👩\u200d💻\n\tend"
    assert inert_text(text) == text


def test_no_row_of_braces_is_left() -> None:
    """A text with any number of braces contains no two of them in a row afterwards."""
    assert inert_text("{{{{=1}}}}") == "{ { { {=1}}}}"


def test_values_are_made_inert_with_their_keys() -> None:
    """Text is escaped in the keys and values of maps and lists; other values do not change."""
    assert inert_value({"{{a": ["\x07", 1, None, {"b": "{{"}]}) == {"{ {a": ["\\x07", 1, None, {"b": "{ {"}]}


@pytest.mark.parametrize(("character", "longer"), [("x", 1), ("\x01", 4), ("\U000e0001", 10)])
def test_why_a_pod_ended_is_bounded_as_it_is_shown(character: str, longer: int) -> None:
    """What a pod said at its end goes to statuses, errors and Airflow's database: its limit holds after
    escaping, which makes a character up to ten times as long."""
    said = {"message": character * 4096}
    pod = {"spec": {"containers": [{"name": "main"}]}, "status": {"containerStatuses": [
        {"name": "main", "state": {"terminated": {"exitCode": 1, **said}}}
    ]}}  # fmt: skip
    replica = MagicMock(pod={}, exit_code=1, end=said)

    assert len(escape_controls(character)) == longer
    assert len(last_words(pod)) == len(": ") + 1024
    assert len(describe_end(replica)) == len("exit code 1, general error: ") + 300


def test_line_feeds_may_be_escaped_too() -> None:
    """Line feeds are escaped where a text must have one line."""
    assert escape_controls("a\r\n\tb", keep="") == "a\\x0d\\x0a\\x09b"


REPORTED = "a\x1b[2J {{workflow.name}}"
EXEMPT = {
    ("CheckpointRef", "uri"): "its message checks it: the rows of `messages`",
    ("CheckpointRestore", "position"): "only the job's own pods see it again: no status and no page has it",
}


def bodies() -> set[type[BaseModel]]:
    """The models of all requests of a master's API, and what is in them."""
    waiting: list[Any] = [route.request for route in ROUTES]
    found: set[type[BaseModel]] = set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) and issubclass(one, BaseModel) and one not in found:
            found.add(one)
            waiting += [field.annotation for field in one.model_fields.values()]
        waiting += get_args(one)
    return found


def types_of_text(annotation: Any, *rules: Any) -> Iterator[Any]:
    """The types in an annotation that take a text, each with the rules for it."""
    if get_origin(annotation) is Annotated:
        base, *more = get_args(annotation)
        yield from types_of_text(base, *more, *rules)
    elif annotation in (str, Any, object):
        yield Annotated[annotation, *rules] if rules else annotation
    elif get_origin(annotation) is not Literal:
        for inner in get_args(annotation):
            yield from types_of_text(inner)


@pytest.mark.parametrize("name", sorted(model.__name__ for model in bodies()))
def test_no_text_of_a_pod_reaches_the_master_as_it_is(name: str) -> None:
    """In whatever field a pod sends it, a text with a control character and a template tag is refused or
    escaped."""
    (model,) = (model for model in bodies() if model.__name__ == name)
    for key, field in model.model_fields.items():
        if (name, key) in EXEMPT:
            continue
        for type_of_text in types_of_text(field.annotation, *field.metadata):
            with contextlib.suppress(ValidationError):
                taken = str(TypeAdapter(type_of_text).validate_python(REPORTED))
                assert "\x1b" not in taken, key
                assert "{{" not in taken, key


def test_every_report_is_tried() -> None:
    """The bodies are those of the API, and several dozen of their fields take a text."""
    fields = [field for model in bodies() for field in model.model_fields.values()]
    assert {ExitReport, StackReport, CrashReport, ResultReport, CheckpointDamage} <= bodies()
    assert sum(1 for field in fields for _ in types_of_text(field.annotation, *field.metadata)) > 30
