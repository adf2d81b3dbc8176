"""Deletion: preconditions, finalizers, grace, owners, namespaces."""

from collections.abc import Callable

import pytest

from tests.conformance.support import Api, Object, config_map, eventually, owner, pod, refusal

MakeWidget = Callable[..., Object]
HOLD = "example.com/hold"


def test_delete_answers_with_success(api: Api, core: str) -> None:
    """The response to a deletion is a Status that names the object, and the object is gone."""
    made = api.post(f"{core}/configmaps", config_map("a"))
    answer = api.delete(f"{core}/configmaps/a")

    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert api.absent(f"{core}/configmaps/a")


@pytest.mark.parametrize("field", ["uid", "resourceVersion"])
def test_preconditions(api: Api, core: str, field: str) -> None:
    """A deletion of another uid or version than the object's is a Conflict."""
    made = api.post(f"{core}/configmaps", config_map("a"))
    wrong = {"uid": "11111111-1111-1111-1111-111111111111", "resourceVersion": "1"}[field]
    error = refusal(lambda: api.delete(f"{core}/configmaps/a", {"preconditions": {field: wrong}}))
    api.delete(f"{core}/configmaps/a", {"preconditions": {field: made["metadata"][field]}})

    assert (error.code, error.reason) == (409, "Conflict")


def test_finalizers_hold(api: Api, wpath: str, widget: MakeWidget) -> None:
    """An object with finalizers is marked as deleted, can still be changed, accepts no new finalizers, and
    disappears with its last finalizer."""
    made = api.post(wpath, widget(metadata={"finalizers": [HOLD]}))
    marked = api.delete(f"{wpath}/w")
    changed = api.merge(f"{wpath}/w", {"spec": {"replicas": 5}})
    more = refusal(lambda: api.merge(f"{wpath}/w", {"metadata": {"finalizers": [HOLD, "example.com/new"]}}))
    api.merge(f"{wpath}/w", {"metadata": {"finalizers": None}})

    assert marked["metadata"]["deletionTimestamp"]
    assert marked["metadata"]["generation"] == made["metadata"]["generation"] + 1
    assert changed["spec"]["replicas"] == 5
    assert (more.code, list(more.causes)) == (422, ["metadata.finalizers"])
    assert api.absent(f"{wpath}/w")


def test_second_delete_changes_nothing(api: Api, wpath: str, widget: MakeWidget) -> None:
    """Deleting again while finalizers hold keeps the first deletionTimestamp and version."""
    api.post(wpath, widget(metadata={"finalizers": [HOLD]}))
    first = api.delete(f"{wpath}/w")
    second = api.delete(f"{wpath}/w")
    api.merge(f"{wpath}/w", {"metadata": {"finalizers": None}})

    assert second["metadata"] == first["metadata"]


def _bound(api: Api, core: str, name: str, **spec: object) -> str:
    # A node that nobody runs: the pod stays as it is told.
    api.post(f"{core}/pods", pod(name, nodeName="nobody", **spec))
    return f"{core}/pods/{name}"


def test_grace_marks_a_pod(api: Api, core: str) -> None:
    """A deleted pod on a node is marked with its grace period, and disappears when it is deleted with grace
    0."""
    path = _bound(api, core, "p", terminationGracePeriodSeconds=100)
    marked = api.delete(path)
    shortened = api.delete(path, gracePeriodSeconds=7)
    api.delete(path, gracePeriodSeconds=0)

    assert marked["metadata"]["deletionGracePeriodSeconds"] == 100
    assert marked["metadata"]["deletionTimestamp"] > marked["metadata"]["creationTimestamp"]
    assert shortened["metadata"]["deletionGracePeriodSeconds"] == 7
    assert api.absent(path)


def test_unscheduled_and_finished_pods_go_at_once(api: Api, core: str) -> None:
    """A pod that has no node or has ended is deleted without a grace period, since no process must be
    stopped."""
    api.post(f"{core}/pods", pod("waiting", schedulerName="nobody"))
    path = _bound(api, core, "ended")
    api.merge(f"{path}/status", {"status": {"phase": "Succeeded"}})
    api.delete(f"{core}/pods/waiting")
    api.delete(path)

    assert api.absent(f"{core}/pods/waiting")
    assert api.absent(path)


def test_dependents_follow_in_the_background(api: Api, core: str, wpath: str, widget: MakeWidget) -> None:
    """Dependents are deleted after their owner, and their dependents after them."""
    root = api.post(wpath, widget())
    child = api.post(f"{core}/configmaps", config_map("child", metadata={"ownerReferences": [owner(root)]}))
    api.post(f"{core}/secrets", {"metadata": {"name": "grandchild", "ownerReferences": [owner(child)]}})
    api.delete(f"{wpath}/w", propagationPolicy="Background")

    assert api.absent(f"{wpath}/w")
    eventually(lambda: api.absent(f"{core}/configmaps/child"), "the child is collected")
    eventually(lambda: api.absent(f"{core}/secrets/grandchild"), "the grandchild is collected")


def test_one_owner_left(api: Api, core: str) -> None:
    """A dependent with another existing owner stays and loses the reference to the deleted one."""
    first, second = (api.post(f"{core}/configmaps", config_map(name)) for name in ("one", "two"))
    references = [owner(first), owner(second)]
    api.post(f"{core}/configmaps", config_map("child", metadata={"ownerReferences": references}))
    api.delete(f"{core}/configmaps/one")

    def forgotten() -> bool:
        left = api.get(f"{core}/configmaps/child")["metadata"]["ownerReferences"]
        return [one["name"] for one in left] == ["two"]

    eventually(forgotten, "the dead owner is forgotten")


def test_orphans_stay(api: Api, core: str) -> None:
    """With Orphan, the dependents stay and lose their owner reference."""
    root = api.post(f"{core}/configmaps", config_map("root"))
    api.post(f"{core}/configmaps", config_map("child", metadata={"ownerReferences": [owner(root)]}))
    # The collector works from a cache; wait until it has surely seen the child.
    eventually(lambda: not api.absent(f"{core}/configmaps/child"), "the child is there")
    api.delete(f"{core}/configmaps/root", propagationPolicy="Orphan")
    eventually(lambda: api.absent(f"{core}/configmaps/root"), "the owner goes")

    assert "ownerReferences" not in api.get(f"{core}/configmaps/child")["metadata"]


def test_foreground_waits_for_dependents(api: Api, core: str) -> None:
    """With Foreground, the owner waits for the dependents that block its deletion."""
    root = api.post(f"{core}/configmaps", config_map("root"))
    reference = owner(root, blockOwnerDeletion=True)
    metadata = {"ownerReferences": [reference], "finalizers": [HOLD]}
    api.post(f"{core}/configmaps", config_map("child", metadata=metadata))
    marked = api.delete(f"{core}/configmaps/root", propagationPolicy="Foreground")
    eventually(
        lambda: "deletionTimestamp" in api.get(f"{core}/configmaps/child")["metadata"], "the child is deleted"
    )
    waiting = not api.absent(f"{core}/configmaps/root")
    api.merge(f"{core}/configmaps/child", {"metadata": {"finalizers": None}})
    eventually(lambda: api.absent(f"{core}/configmaps/root"), "the owner goes")

    assert marked["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert waiting


def test_born_without_owner(api: Api, core: str) -> None:
    """An object whose owner does not exist is deleted."""
    ghost = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "ghost", "uid": "22222222-2222-2222-2222-222222222222"},
    }
    api.post(f"{core}/configmaps", config_map("child", metadata={"ownerReferences": [owner(ghost)]}))

    eventually(lambda: api.absent(f"{core}/configmaps/child"), "the child is collected")


def test_namespace_takes_its_content_along(api: Api, widgets: str, widget: MakeWidget) -> None:
    """A deleted namespace rejects new content, deletes its content, and disappears when finalizers allow
    it."""
    name = api.post("/api/v1/namespaces", {"metadata": {"generateName": "conf-gone-"}})["metadata"]["name"]
    core = f"/api/v1/namespaces/{name}"
    path = f"/apis/{widgets}/v1/namespaces/{name}/widgets"
    api.post(f"{core}/configmaps", config_map("a"))
    api.post(path, widget(metadata={"finalizers": [HOLD]}))
    api.delete(core)
    error = refusal(lambda: api.post(f"{core}/secrets", {"metadata": {"name": "late"}}))
    eventually(lambda: api.absent(f"{core}/configmaps/a"), "content is deleted")
    phase = api.get(core)["status"]["phase"]
    eventually(lambda: "deletionTimestamp" in api.get(f"{path}/w")["metadata"], "the widget is marked")
    api.merge(f"{path}/w", {"metadata": {"finalizers": None}})
    eventually(lambda: api.absent(core), "the namespace is gone")

    assert (error.code, error.reason, phase) == (403, "Forbidden", "Terminating")


def test_default_namespace_stays(api: Api) -> None:
    """The default namespace can't be deleted."""
    assert refusal(lambda: api.delete("/api/v1/namespaces/default")).code == 403


def test_delete_collection(api: Api, core: str) -> None:
    """A collection is deleted by selector."""
    for name, team in (("a", "x"), ("b", "x"), ("c", "y")):
        api.post(f"{core}/secrets", {"metadata": {"name": name, "labels": {"team": team}}})
    api.delete(f"{core}/secrets", labelSelector="team=x")

    assert [item["metadata"]["name"] for item in api.get(f"{core}/secrets")["items"]] == ["c"]
