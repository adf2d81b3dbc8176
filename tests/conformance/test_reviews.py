"""Who am I, what may I do: the reviews of authentication.k8s.io and authorization.k8s.io."""

import shutil
import subprocess
from typing import Any

import pytest

from tests.conformance.support import Api, Object, refusal
from tests.conformance.test_access import anonymous, service_account_token

AUTHENTICATION = "/apis/authentication.k8s.io/v1"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"


def review(api: Api, path: str, **spec: Any) -> Object:
    """The status of a review."""
    group, _, plural = path.removeprefix("/apis/").partition("/v1/")
    kinds = {
        "selfsubjectaccessreviews": "SelfSubjectAccessReview",
        "selfsubjectrulesreviews": "SelfSubjectRulesReview",
        "subjectaccessreviews": "SubjectAccessReview",
        "selfsubjectreviews": "SelfSubjectReview",
        "tokenreviews": "TokenReview",
    }
    made = api.post(path, {"apiVersion": f"{group}/v1", "kind": kinds[plural], "spec": spec})
    assert (made["apiVersion"], made["kind"]) == (f"{group}/v1", kinds[plural])
    status: Object = made["status"]
    return status


def attributes(verb: str, resource: str, namespace: str = "", group: str = "") -> Object:
    return {"verb": verb, "resource": resource, "namespace": namespace, "group": group}


def test_an_administrator_may_do_everything(api: Api, namespace: str) -> None:
    """A SelfSubjectAccessReview allows resources, known or not, and paths."""
    path = f"{AUTHORIZATION}/selfsubjectaccessreviews"

    assert review(api, path, resourceAttributes=attributes("create", "pods", namespace))["allowed"]
    assert review(api, path, resourceAttributes=attributes("*", "*", group="*"))["allowed"]
    assert review(api, path, nonResourceAttributes={"path": "/version", "verb": "get"})["allowed"]


def test_an_access_review_needs_a_question(api: Api) -> None:
    """A review about a resource and a path at once, or about neither, is Invalid."""
    path = f"{AUTHORIZATION}/selfsubjectaccessreviews"
    both = {
        "resourceAttributes": attributes("get", "pods"),
        "nonResourceAttributes": {"path": "/", "verb": "get"},
    }

    assert refusal(lambda: review(api, path)).code == 422
    assert refusal(lambda: review(api, path, **both)).code == 422


@pytest.mark.parametrize("about", ["resourceAttributes", "nonResourceAttributes"])
def test_a_question_without_details_is_answered(api: Api, about: str) -> None:
    """An access review whose question names neither a verb nor an object is answered as any other."""
    assert review(api, f"{AUTHORIZATION}/selfsubjectaccessreviews", **{about: {}})["allowed"]


def test_a_service_account_learns_its_limits(api: Api, core: str, namespace: str) -> None:
    """A service account may ask about itself, and the reviews do not allow what the server rejects. It may
    not review tokens."""
    token = service_account_token(api, core, "worker")
    with anonymous(api, authorization=f"Bearer {token}") as client:
        account = Api(client, api.kubeconfig)
        path = f"{AUTHORIZATION}/selfsubjectaccessreviews"
        abroad = review(account, path, resourceAttributes=attributes("list", "secrets", "kube-system"))
        cluster = review(account, path, resourceAttributes=attributes("create", "nodes"))
        me = review(account, f"{AUTHENTICATION}/selfsubjectreviews")["userInfo"]
        rules = review(account, f"{AUTHORIZATION}/selfsubjectrulesreviews", namespace=namespace)
        asking_others = refusal(lambda: review(account, f"{AUTHENTICATION}/tokenreviews", token=token))

    assert (abroad["allowed"], cluster["allowed"]) == (False, False)
    assert me["username"] == f"system:serviceaccount:{namespace}:worker"
    assert {"system:serviceaccounts", "system:authenticated"} <= set(me["groups"])
    assert {"resourceRules", "nonResourceRules", "incomplete"} <= rules.keys()
    assert asking_others.code == 403


@pytest.mark.embedded_only("Roles grant nothing here; a service account owns its namespace")
def test_a_service_account_owns_its_namespace(api: Api, core: str, namespace: str) -> None:
    """The reviews of a service account allow what the server allows it, and others can ask the same about
    it."""
    token = service_account_token(api, core, "worker")
    user = f"system:serviceaccount:{namespace}:worker"
    questions = {
        "own": attributes("create", "pods", namespace),
        "nodes": attributes("list", "nodes"),
        "nodes in a namespace": attributes("create", "nodes", namespace),
        "abroad": attributes("get", "secrets", "kube-system"),
    }
    with anonymous(api, authorization=f"Bearer {token}") as client:
        account = Api(client, api.kubeconfig)
        path = f"{AUTHORIZATION}/selfsubjectaccessreviews"
        own = {name: review(account, path, resourceAttributes=one) for name, one in questions.items()}
    path = f"{AUTHORIZATION}/subjectaccessreviews"
    asked = {name: review(api, path, user=user, resourceAttributes=one) for name, one in questions.items()}

    assert {name: one["allowed"] for name, one in own.items()} == {
        "own": True, "nodes": True, "nodes in a namespace": False, "abroad": False,
    }  # fmt: skip
    assert asked == own
    assert "everything in its own namespace" in own["abroad"]["reason"]
    assert not review(api, path, user="nobody", resourceAttributes=questions["own"])["allowed"]


def test_token_review(api: Api, core: str, namespace: str) -> None:
    """A TokenReview names whom a token belongs to, and refuses an unknown one."""
    token = service_account_token(api, core, "worker")
    path = f"{AUTHENTICATION}/tokenreviews"
    known, unknown = review(api, path, token=token), review(api, path, token="made.up.token")

    assert known["authenticated"] is True
    assert known["user"]["username"] == f"system:serviceaccount:{namespace}:worker"
    assert not unknown.get("authenticated")


def test_reviews_are_discovered_and_can_only_be_created(api: Api) -> None:
    """Discovery lists the reviews with the one verb that they have."""
    found = {one["name"]: one["verbs"] for one in api.get(AUTHORIZATION)["resources"]}

    assert found["selfsubjectaccessreviews"] == ["create"]
    assert refusal(lambda: api.send("GET", f"{AUTHORIZATION}/selfsubjectaccessreviews")).code == 405


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on PATH")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["can-i", "create", "pods"], "yes", id="can-i"),
        pytest.param(["can-i", "delete", "leases.coordination.k8s.io"], "yes", id="can-i in a group"),
        pytest.param(["can-i", "--list"], "*.*", id="can-i --list"),
        pytest.param(["whoami"], "system:authenticated", id="whoami"),
    ],
)
def test_kubectl_auth(api: Api, arguments: list[str], said: str) -> None:
    """``kubectl auth`` works with the server."""
    command = ["kubectl", "--kubeconfig", str(api.kubeconfig), "auth", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)

    assert said in done.stdout, done.stderr
