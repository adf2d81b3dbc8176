"""Events of an object, aggregated."""

import datetime as dt

from edl_workflows.runtime.kube import client, events
from edl_workflows.runtime.kube.connect import Cluster, RequestRecord
from edl_workflows.runtime.kube.events import EventNote, Recorder
from edl_workflows.runtime.kube.resources import EVENTS
from tests.unit.runtime.kube.test_client import config_map

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NOTE = EventNote("Failed", "it broke", "Warning")


def test_event_of_an_object(cluster: Cluster) -> None:
    """An Event says about which object, what, why and by whom; `of_object` finds it."""
    subject = client.create(cluster, config_map("a"))
    Recorder(cluster, "tester").record(subject, NOTE, NOW)

    (event,) = events.of_object(cluster, subject)
    assert tuple(event[field] for field in ("type", "reason", "message", "count")) == (
        "Warning",
        "Failed",
        "it broke",
        1,
    )
    assert subject["metadata"]["uid"] == event["involvedObject"]["uid"]
    assert event["source"]["component"] == "tester"


def test_repetition_counts_up(cluster: Cluster) -> None:
    """If the same Event occurs a hundred times in a second, it is written once. Later its count is increased
    instead of adding an Event."""
    requests: list[RequestRecord] = []
    subject = client.create(cluster, config_map("a"))
    recorder = Recorder(cluster.observed_by(requests.append), "tester")
    for _ in range(100):
        recorder.record(subject, NOTE, NOW)
    recorder.record(subject, NOTE, NOW + dt.timedelta(minutes=1))

    (event,) = events.of_object(cluster, subject)
    assert event["count"] == 101
    assert [r.verb for r in requests] == ["create", "patch"]


def test_counts_on_after_a_restart(cluster: Cluster) -> None:
    """A new process that says the same thing goes on counting."""
    subject = client.create(cluster, config_map("a"))
    Recorder(cluster, "tester").record(subject, NOTE, NOW)
    Recorder(cluster, "tester").record(subject, NOTE, NOW)

    (event,) = events.of_object(cluster, subject)
    assert event["count"] == 2


def test_expired_event_is_made_anew(cluster: Cluster) -> None:
    """An Event that the server has dropped in between is created again."""
    subject = client.create(cluster, config_map("a"))
    recorder = Recorder(cluster, "tester")
    recorder.record(subject, NOTE, NOW)
    (event,) = events.of_object(cluster, subject)
    client.delete(cluster, EVENTS, event["metadata"]["name"])
    recorder.record(subject, NOTE, NOW + dt.timedelta(minutes=1))

    assert len(events.of_object(cluster, subject)) == 1


def test_long_message_is_cut(cluster: Cluster) -> None:
    """A message that is longer than the API allows is cut."""
    subject = client.create(cluster, config_map("a"))
    Recorder(cluster, "tester").record(subject, EventNote("Failed", "x" * 5000), NOW)

    (event,) = events.of_object(cluster, subject)
    assert len(event["message"]) == events.MAX_MESSAGE
