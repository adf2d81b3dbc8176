"""Merge patches, and the registry's promises to the loop."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.actions import Observed, merge_patch
from edl_workflows.core.jobs.elastic_job.kind import SCALE_PLANS
from edl_workflows.core.jobs.manifests import was_disrupted, why_pending
from edl_workflows.core.kubernetes import names

scalars = st.integers() | st.text(max_size=3) | st.booleans() | st.lists(st.integers(), max_size=2)
values = st.recursive(scalars, lambda below: st.dictionaries(st.sampled_from("abc"), below), max_leaves=8)
documents = st.dictionaries(st.sampled_from("abcd"), values)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, as written there."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@given(documents, documents)
def test_merge_patch_makes_the_wanted_fields(current: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Applied to the present fields, the patch gives the wanted ones and leaves fields that others set."""
    result = merged(current, merge_patch(current, wanted) or {})

    assert result == current | wanted


@given(documents)
def test_merge_patch_of_no_difference_is_none(current: dict[str, Any]) -> None:
    """If nothing differs, there is no patch and nothing is written."""
    assert merge_patch(current, current) is None


def test_each_source_is_watched_once() -> None:
    """Two kinds that watch the same pods share one watch; a kind with other labels has a watch of its own."""
    found = [(source.api.kind, source.selector) for source in kinds.watched_sources()]

    assert sorted(found) == sorted(set(found))
    assert {"ElasticJob", "ScalePlan", "TFJob"} <= {kind for kind, _ in found}
    assert len([kind for kind, _ in found if kind == "Pod"]) > 1


def test_unknown_kind_is_told() -> None:
    """A misspelt kind is an error that lists the known kinds."""
    with pytest.raises(InvalidError, match=r"'MPIJob' is no kind .* ElasticJob, ScalePlan"):
        kinds.kind_of("MPIJob")


@pytest.mark.parametrize(
    ("spec", "labels", "job"),
    [
        pytest.param({"ownerJob": "a"}, {names.JOB_LABEL: "b"}, "a", id="spec wins"),
        pytest.param({}, {names.JOB_LABEL: "b"}, "b", id="label"),
        pytest.param({}, {names.LEGACY_JOB_LABEL: "c"}, "c", id="older label"),
        pytest.param({}, None, "/p", id="none: alone, since no job has such a name"),
    ],
)
def test_plan_belongs_to_its_job(spec: dict[str, Any], labels: dict[str, str] | None, job: str) -> None:
    """Valid and invalid plans are grouped by job in the way the model reads them."""
    manifest = {"metadata": {"name": "p", "labels": labels}, "spec": spec}

    assert SCALE_PLANS.job_of(manifest) == job


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("digits-edljob-worker-12", ("worker", 12)),
        ("digits-edljob-worker-012", None),
        ("digits-edljob-master-1", None),
        ("digits-worker-1", None),
        ("other-edljob-ps-1", None),
    ],
)
def test_names_of_nodes_are_read_back(name: str, found: tuple[str, int] | None) -> None:
    """`node_name` can be reversed. Other texts are not names of nodes."""
    assert names.parse_node_name("digits", name) == found


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param({"reason": "Evicted"}, True, id="evicted"),
        pytest.param({"conditions": [{"type": "DisruptionTarget", "status": "True"}]}, True, id="preempted"),
        pytest.param({}, True, id="never ran"),
        pytest.param(
            {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 2}}}]},
            False,
            id="failed",
        ),
    ],
)  # fmt: skip
def test_disruptions_are_told_from_failures(status: dict[str, Any], expected: bool) -> None:
    """A pod failed by its own fault only if its container ended with an exit code of its own."""
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}, "status": status}

    assert was_disrupted(pod) is expected


def test_waiting_container_tells_why() -> None:
    """A missing image is reported in the kubelet's words; an ordinary start is not reported."""
    waiting = {
        "name": "main",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    }
    starting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}

    assert why_pending({"status": {"containerStatuses": [waiting]}}) == "ImagePullBackOff: no such image"
    assert why_pending({"status": {"containerStatuses": [starting]}}) == ""


def test_decision_never_raises_for_what_a_user_wrote() -> None:
    """However wrong a manifest is, the decision sets a status and does not raise."""
    from datetime import UTC, datetime

    manifest = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ScalePlan",
        "metadata": {"name": "p"},
        "spec": 7,
    }
    actions = kinds.kind_of("ScalePlan").decide(manifest, Observed(now=datetime(2026, 1, 1, tzinfo=UTC)))

    assert actions.status is not None
    assert (actions.status["phase"], actions.status["reason"]) == ("Failed", "InvalidSpec")
    assert [event.type for event in actions.events] == ["Warning"]
