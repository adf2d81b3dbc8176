"""Laws of every installation."""

import functools
import importlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job import pods
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.core.partitions import MAX_PARTITIONS
from edl_workflows.pipelines.argo.agent import run as argo_agent
from edl_workflows.pipelines.cli.services import crds
from edl_workflows.pipelines.install import flow_control, rbac, workloads
from edl_workflows.pipelines.install.crds import render_yaml
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import CrdMode, InstallOptions, InstallPart, PullPolicy

IMAGE = "registry.example/edl:1"
ALL = ("all",)

OPTIONS = [
    InstallOptions(IMAGE, "edl-system", jobs, ALL, 2, policy, secrets, parts)
    for jobs, policy, secrets, parts in itertools.product(
        (NamespaceSelection(), NamespaceSelection.of("training"), NamespaceSelection(("training", "vision"))),
        (None, PullPolicy.NEVER),
        ((), ("a", "b")),
        (frozenset[InstallPart](), frozenset(InstallPart)),
    )
]


def described(options: InstallOptions) -> str:
    """An id that is the same in each process, although the order of a set is not."""
    parts = [
        *options.jobs_namespaces.names,
        options.pull_policy,
        *options.pull_secrets,
        *sorted(options.parts),
    ]
    return "-".join(part for part in parts if part) or "plain"


@functools.cache
def _objects(options: InstallOptions) -> list[dict[str, Any]]:
    """The objects of one installation, which are only read: to make their definitions takes 0.1 s."""
    return installation_manifests(options)


def of_kind(options: InstallOptions, kind: str) -> list[dict[str, Any]]:
    return [one for one in _objects(options) if one["kind"] == kind]


def rights(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Each (group, resource, verb)."""
    return {
        (group, resource, verb)
        for one in rules
        for group in one["apiGroups"]
        for resource in one["resources"]
        for verb in one["verbs"]
    }


def _without_definitions(options: InstallOptions, objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The definitions of our kinds are large and the same in all installations: only the first prints
    them."""
    return [one for one in objects if options is OPTIONS[0] or one["kind"] != "CustomResourceDefinition"]


@pytest.mark.parametrize("options", OPTIONS, ids=described)
def test_text_is_the_objects(options: InstallOptions) -> None:
    """The printed YAML contains exactly the objects, is reproducible, has each name once, and has no
    anchors."""
    objects = _objects(options)
    text = render_yaml(_without_definitions(options, objects))

    assert list(yaml.load_all(text, yaml.CSafeLoader)) == _without_definitions(options, objects)
    assert render_yaml(_without_definitions(options, installation_manifests(options))) == text
    assert "&id" not in text
    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(set(keys)) == len(keys)
    assert all(one["metadata"]["labels"].items() >= names.PART_OF.items() for one in objects)


@pytest.mark.parametrize("options", OPTIONS, ids=described)
def test_what_installations_share_is_apart(options: InstallOptions) -> None:
    """Definitions, the roles of people and pipelines, and priority levels, which all installations of a
    cluster share, are printed alone or left out. Without them an installation has only objects of its own,
    so that deleting it deletes no other team's jobs, and a second one of another version changes none of
    them."""
    shared = installation_manifests(replace(options, image="", crds=CrdMode.ONLY))
    own = installation_manifests(replace(options, crds=CrdMode.WITHOUT))

    roles = {rbac.VIEWER, rbac.PIPELINE, rbac.TRIGGERER}
    definitions = {f"{kind.source.api.plural}.{kind.source.api.group}" for kind in KINDS}
    levels = {names.CONTROLLER, flow_control.MASTERS}
    assert {one["metadata"]["name"] for one in shared} == definitions | roles | levels
    assert _objects(options) == [*shared, *own]
    cluster_wide = [one for one in own if "namespace" not in one["metadata"]]
    if options.jobs_namespaces.names:
        names_of_own = {manifest["metadata"]["name"] for manifest in cluster_wide} - {options.namespace}
        assert all(name.endswith(("-training", ".edl-system")) for name in names_of_own), names_of_own


SELECTIONS = (
    NamespaceSelection(),
    NamespaceSelection.of("leader-election"),
    NamespaceSelection.of("controller"),
    NamespaceSelection.of("edl-e"),
    NamespaceSelection(("training", "vision")),
    NamespaceSelection(selector="team=vision"),
    NamespaceSelection(selector="team"),
)


def _own_names(options: InstallOptions) -> set[tuple[str, str]]:
    """Kinds and names of the objects outside of namespaces that an installation has for itself."""
    own = installation_manifests(replace(options, crds=CrdMode.WITHOUT))
    return {(o["kind"], o["metadata"]["name"]) for o in own if "namespace" not in o["metadata"]}


@pytest.mark.parametrize(("first", "second"), [*itertools.combinations(SELECTIONS, 2)], ids=str)
def test_no_two_installations_clash(first: NamespaceSelection, second: NamespaceSelection) -> None:
    """Whatever the namespaces of two installations are called, they have no object in common but what all
    share."""
    one, other = (
        _own_names(InstallOptions(IMAGE, own, selection, ALL, parts=frozenset(InstallPart)))
        for own, selection in (("edl-c", first), ("edl-d", second))
    )

    assert not one & other


@pytest.mark.parametrize("options", OPTIONS, ids=described)
def test_what_is_named_is_there(options: InstallOptions) -> None:
    """Roles come before their bindings, and accounts, configurations and namespaces before the objects that
    use them."""
    seen: set[tuple[str, str, str]] = set()
    for one in _objects(options):
        namespace = one["metadata"].get("namespace", "")
        if namespace == options.namespace:
            assert ("Namespace", "", namespace) in seen
        if "roleRef" in one:
            where = namespace if one["roleRef"]["kind"] == "Role" else ""
            assert (one["roleRef"]["kind"], where, one["roleRef"]["name"]) in seen
            accounts = {("ServiceAccount", s["namespace"], s["name"]) for s in one["subjects"]}
            assert accounts <= seen
        if one["kind"] == "Deployment":
            pod = one["spec"]["template"]["spec"]
            assert ("ServiceAccount", namespace, pod["serviceAccountName"]) in seen
            volumes = pod.get("volumes", [])
            configs = {v["configMap"]["name"] for v in volumes if "configMap" in v}
            claims = {
                v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v
            }
            assert {("ConfigMap", namespace, name) for name in configs} <= seen
            assert {("PersistentVolumeClaim", namespace, name) for name in claims} <= seen
        seen.add((one["kind"], namespace, one["metadata"]["name"]))


@pytest.mark.parametrize("options", OPTIONS, ids=described)
def test_services_policies_and_budgets_select_the_pods(options: InstallOptions) -> None:
    """The Service, the NetworkPolicy and the budget of each Deployment select its pods, with the right
    port."""
    deployments = of_kind(options, "Deployment")
    assert len(deployments) == 1 + len(options.parts)
    for one in deployments:
        labels = one["spec"]["template"]["metadata"]["labels"]
        container = one["spec"]["template"]["spec"]["containers"][0]
        budgets = of_kind(options, "PodDisruptionBudget")
        policies = of_kind(options, "NetworkPolicy")
        services = [
            service
            for service in of_kind(options, "Service")
            if service["spec"]["selector"] == labels and service["metadata"]["name"].endswith("-metrics")
        ]
        assert labels == one["spec"]["selector"]["matchLabels"]
        assert sum(b["spec"]["selector"]["matchLabels"] == labels for b in budgets) == 1
        policy = next(p for p in policies if p["spec"]["podSelector"]["matchLabels"] == labels)
        port = container["ports"][0]["containerPort"]
        assert [s["spec"]["ports"][0]["targetPort"] for s in services] == [container["ports"][0]["name"]]
        assert [p["port"] for p in policy["spec"]["ingress"][0]["ports"]] == [port]
        assert container["command"][-1] == str(port)


@pytest.mark.parametrize("options", OPTIONS, ids=described)
def test_who_makes_a_masters_role_has_its_rights(options: InstallOptions) -> None:
    """Kubernetes lets no identity grant permissions that it lacks, so the controller's role includes those of
    every master."""
    role = next(
        r
        for kind in ("ClusterRole", "Role")
        for r in of_kind(options, kind)
        if r["metadata"]["name"] == names.CONTROLLER
    )

    assert rights(pods.master_rules("any")) <= rights(role["rules"])
    assert all("resourceNames" not in rule for rule in role["rules"])


def test_the_autoscaler_gets_what_it_needs() -> None:
    """With the autoscaler, the controller gets its option and permissions to patch TrainingJobs and to read
    nodes. It is rejected for a single namespace."""
    plain, scaled = (
        InstallOptions(image=IMAGE, kinds=("TrainingJob",), autoscaler=on) for on in (False, True)
    )
    more = _controllers(scaled) - _controllers(plain)
    command = of_kind(scaled, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["command"]

    assert more == {
        ("paddlepaddle.org", "trainingjobs", "patch"),
        ("", "nodes", "list"),
        ("", "nodes", "watch"),
    }
    assert "--autoscaler" in command
    with pytest.raises(InvalidError, match="whole cluster"):
        InstallOptions(image=IMAGE, jobs_namespaces=NamespaceSelection.of("training"), autoscaler=True)


def test_an_elastic_job_is_changed_by_plans_alone() -> None:
    """The autoscaler may not update ElasticJobs; the controller's permission to create plans is needed by its
    masters anyway."""
    job_kinds = InstallOptions(image=IMAGE, kinds=("ElasticJob", "ScalePlan"), autoscaler=True).job_kinds
    ours = {one for one in rights(rbac.autoscaler_rules(job_kinds)) if one[0]}

    assert ours == {(names.GROUP, "elasticjobs", "get"), (names.GROUP, "scaleplans", "create")}


def _controllers(options: InstallOptions) -> set[tuple[str, str, str]]:
    roles = of_kind(options, "ClusterRole")
    return rights(next(r["rules"] for r in roles if r["metadata"]["name"] == names.CONTROLLER))


@pytest.mark.parametrize("namespaces", [("training",), ("training", "vision")])
def test_named_namespaces_get_no_rights_in_others(namespaces: tuple[str, ...]) -> None:
    """With named namespaces for jobs, no component has cluster-wide permissions. It has the same in each of
    them."""
    options = InstallOptions(
        IMAGE, jobs_namespaces=NamespaceSelection(namespaces), kinds=ALL, parts=frozenset(InstallPart)
    )
    roles = {(role["metadata"]["namespace"], role["metadata"]["name"]) for role in of_kind(options, "Role")}
    bindings = {
        (binding["metadata"]["namespace"], binding["roleRef"]["name"])
        for binding in of_kind(options, "RoleBinding")
    }
    accounts = (names.CONTROLLER, rbac.ARGO_AGENT, names.DI_SERVER)

    assert not of_kind(options, "ClusterRoleBinding")
    assert {role for role in roles if role[0] != "edl-system"} == set(itertools.product(namespaces, accounts))
    assert bindings == roles


def test_a_selector_of_namespaces_gets_rights_to_follow_it() -> None:
    """With a selector, the components have the rights of an installation for all namespaces, and those to
    watch namespaces. The roles are the installation's own. Brain watches no jobs of others."""
    everything = InstallOptions(IMAGE, kinds=ALL, parts=frozenset(InstallPart))
    selected = replace(everything, jobs_namespaces=NamespaceSelection(selector="team=vision"))
    own = {role["metadata"]["name"]: rights(role["rules"]) for role in of_kind(selected, "ClusterRole")}
    follow = {("", "namespaces", "list"), ("", "namespaces", "watch")}

    for account in (names.CONTROLLER, rbac.ARGO_AGENT, names.DI_SERVER):
        (role,) = (r for r in of_kind(everything, "ClusterRole") if r["metadata"]["name"] == account)
        assert own[f"{account}.edl-system"] == rights(role["rules"]) | follow
        assert account not in own
    assert not [name for name in own if name.startswith(names.BRAIN)]
    assert of_kind(selected, "Role") == of_kind(everything, "Role")


@pytest.mark.parametrize(
    ("selection", "arguments"),
    [
        (NamespaceSelection(), ["--all-namespaces"]),
        (NamespaceSelection.of("a"), ["--namespace", "a"]),
        (NamespaceSelection(("b", "a")), ["--jobs-namespace", "b", "--jobs-namespace", "a"]),
        (NamespaceSelection(selector="t in (a,b)"), ["--jobs-namespace-selector", "t in (a,b)"]),
    ],
    ids=str,
)
def test_every_component_serves_the_namespaces(selection: NamespaceSelection, arguments: list[str]) -> None:
    """The controller, Argo's agent and the DI server serve the namespaces of the installation."""
    parts = frozenset({InstallPart.ARGO_AGENT, InstallPart.DI_SERVER})
    options = InstallOptions(IMAGE, jobs_namespaces=selection, kinds=ALL, parts=parts)
    for deployment in of_kind(options, "Deployment"):
        command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
        start = command.index(arguments[0])
        assert command[start : start + len(arguments)] == arguments


@pytest.mark.parametrize("name", [rbac.VIEWER, rbac.PIPELINE, rbac.TRIGGERER])
def test_roles_of_people_touch_no_pods_secrets_or_roles(name: str) -> None:
    """Users who run pipelines may change jobs and plans, read logs, and create the ConfigMaps of their
    programs, and nothing else."""
    role = next(r for r in of_kind(OPTIONS[0], "ClusterRole") if r["metadata"]["name"] == name)
    ours = {(kind.source.api.group, kind.source.api.plural) for kind in KINDS}
    others = {one for one in rights(role["rules"]) if one[:2] not in ours}

    logs = {("", "pods", "list"), ("", "pods/log", "get")}
    assert others <= {*logs, ("", "configmaps", "get"), ("", "configmaps", "create")}
    assert {one[1] for one in rights(role["rules"]) if "/" in one[1]} <= {"pods/log"}


def test_a_changed_master_template_makes_new_pods() -> None:
    """The controller reads its configuration at the start, so a change of it changes the pod template."""
    plain, other = (
        of_kind(InstallOptions(image=IMAGE, pull_secrets=secrets), "Deployment")[0]
        for secrets in ((), ("registry",))
    )
    marks = [one["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for one in (plain, other)]

    assert marks[0] != marks[1]


def test_masters_get_the_images_pull_settings() -> None:
    """The Secret of a private registry and the pull policy are the same for masters and the controller."""
    options = InstallOptions(image=IMAGE, pull_policy=PullPolicy.NEVER, pull_secrets=("registry",))
    config = of_kind(options, "ConfigMap")[0]["data"][workloads.MASTER_TEMPLATE]
    master = yaml.safe_load(config)["spec"]
    controller = of_kind(options, "Deployment")[0]["spec"]["template"]["spec"]

    for spec in (master, controller):
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["containers"][0]["imagePullPolicy"] == "Never"


def test_definitions_are_those_that_crds_prints() -> None:
    """`edl install` and `edl crds print` give the same definitions."""
    everything = replace(OPTIONS[0], kinds=("all",))
    installed = of_kind(everything, "CustomResourceDefinition")
    printed = [yaml.load(text, yaml.CSafeLoader) for _, text in crds.read_definitions()]

    assert sorted(installed, key=lambda c: str(c["metadata"]["name"])) == printed


def test_the_di_server_is_where_jobs_look_for_it() -> None:
    """Programs get the address of its Service from the controller. It reads no Secrets, and only pods of jobs
    may call it."""
    options = InstallOptions(image=IMAGE, kinds=ALL, parts=frozenset({InstallPart.DI_SERVER}))
    objects = installation_manifests(options)
    controller, server = (one for one in objects if one["kind"] == "Deployment")
    command = controller["spec"]["template"]["spec"]["containers"][0]["command"]
    service = next(o for o in objects if o["kind"] == "Service" and o["metadata"]["name"] == names.DI_SERVER)
    port = service["spec"]["ports"][0]["port"]
    address = f"http://{names.DI_SERVER}.{service['metadata']['namespace']}.svc:{port}"
    assert command[command.index("--di-server-url") + 1] == address
    assert service["spec"]["selector"].items() <= server["spec"]["template"]["metadata"]["labels"].items()
    assert {one[1] for one in rights(rbac.di_server_rules())} == {"dijobs", "dijobs/status", "pods"}
    policy = next(
        o for o in objects if o["kind"] == "NetworkPolicy" and o["metadata"]["name"] == names.DI_SERVER
    )
    api = policy["spec"]["ingress"][1]
    assert [p["port"] for p in api["ports"]] == [port]
    assert api["from"][0]["podSelector"]["matchLabels"] == {"diengine/operator": "di-operator"}


def test_nodes_are_read_where_all_namespaces_are_served() -> None:
    """A controller that places preemptible jobs may read nodes; in an installation without DIJobs or for a
    single namespace, no component may."""

    def reads_nodes(**options: Any) -> bool:
        roles = of_kind(InstallOptions(image=IMAGE, **options), "ClusterRole")
        return any(("", "nodes", "list") in rights(role["rules"]) for role in roles)

    assert reads_nodes(kinds=("DIJob",))
    assert not reads_nodes()
    assert not reads_nodes(kinds=("DIJob",), jobs_namespaces=NamespaceSelection.of("training"))


def test_the_agent_has_its_lease() -> None:
    """The Lease that the agent asks for is the one that its role allows."""
    assert argo_agent.LEASE == rbac.ARGO_AGENT


def test_partitions_of_the_controller() -> None:
    """Replicas that share the jobs have a Lease each, and the standby comes on top of them. Argo's agent has
    no partitions."""
    options = InstallOptions(IMAGE, controller_partitions=3, parts=frozenset({InstallPart.ARGO_AGENT}))
    controller, agent = of_kind(options, "Deployment")
    assert (controller["spec"]["replicas"], agent["spec"]["replicas"]) == (4, 2)
    command = controller["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[command.index("--partitions") + 1] == "3"
    role = next(
        role for role in of_kind(options, "Role") if role["metadata"]["name"].startswith("edl-controller")
    )
    # Of all slots: with fewer partitions, those that are replaced still renew theirs.
    leases = ["edl-controller", *(f"edl-controller-{slot}" for slot in range(1, MAX_PARTITIONS))]
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, leases]


OWN_TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "ml", "app.kubernetes.io/component": "mine"}, "annotations": {"a": "b"}},
    "spec": {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
        "containers": [
            {
                "name": "main",
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "2Gi"}},
                "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            }
        ],
    },
}


def test_the_pods_of_an_installation_are_as_its_template_says() -> None:
    """All components get resources, placement, priority, labels and variables from the template. What they
    need themselves stays: the labels that select them, their files, their security context."""
    options = InstallOptions(IMAGE, kinds=ALL, parts=frozenset(InstallPart))
    plain = {obj["metadata"]["name"]: obj["spec"] for obj in of_kind(options, "Deployment")}
    own = of_kind(replace(options, pod_template=OWN_TEMPLATE), "Deployment")

    assert len(own) == 4
    for deployment in own:
        before = plain[deployment["metadata"]["name"]]["template"]
        template, selector = deployment["spec"]["template"], deployment["spec"]["selector"]["matchLabels"]
        spec, container = template["spec"], template["spec"]["containers"][0]
        assert selector.items() <= template["metadata"]["labels"].items()
        assert template["metadata"]["labels"]["team"] == "ml"
        assert template["metadata"]["annotations"].items() >= {"a": "b"}.items()
        assert spec["nodeSelector"] == {"pool": "system"}
        assert spec["priorityClassName"] == "system-cluster-critical"
        assert container["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
        assert spec.get("volumes") == before["spec"].get("volumes")
        assert spec["securityContext"] == before["spec"]["securityContext"]
        assert container["command"] == before["spec"]["containers"][0]["command"]
        variables = [variable["name"] for variable in container["env"]]
        needed = before["spec"]["containers"][0].get("env") or []
        assert set(variables) == {"HTTPS_PROXY", *(variable["name"] for variable in needed)}


def test_templates_of_jobs_reach_the_controller() -> None:
    """The templates of masters and of training pods are files that the controller is told to read, and the
    default time to live is an argument. A changed file starts new pods."""
    template = {"spec": {"nodeSelector": {"pool": "gpu"}}}
    options = InstallOptions(
        IMAGE, master_template=OWN_TEMPLATE, training_template=template, ttl_seconds_after_finished=0
    )
    (config,), (deployment,) = of_kind(options, "ConfigMap"), of_kind(options, "Deployment")
    pod = deployment["spec"]["template"]
    command = pod["spec"]["containers"][0]["command"]
    plain = of_kind(InstallOptions(IMAGE), "Deployment")[0]["spec"]["template"]
    master = yaml.safe_load(config["data"][workloads.MASTER_TEMPLATE])

    assert yaml.safe_load(config["data"][workloads.TRAINING_TEMPLATE]) == template
    path = f"{workloads.CONFIG_FOLDER}/{workloads.TRAINING_TEMPLATE}"
    assert command[command.index("--training-template") + 1] == path
    assert command[command.index("--ttl-seconds-after-finished") + 1] == "0"
    assert master["spec"]["nodeSelector"] == {"pool": "system"}
    assert master["spec"]["securityContext"] == workloads.POD_SECURITY
    assert master["spec"]["containers"][0]["securityContext"] == workloads.CONTAINER_SECURITY
    assert pod["metadata"]["annotations"] != plain["metadata"]["annotations"]


def test_the_agents_page_has_its_permissions() -> None:
    """The table in `argo-agent.md` has the rights of the agent's roles, and no others. An installation that
    selects namespaces by labels gives all of them."""
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "argo-agent.md").read_text()
    table = page.partition("| resource | verbs | for |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()]
    told = {
        (resource.strip("`"), verb)
        for resources, verbs, _ in rows
        for resource in resources.split(", ")
        for verb in verbs.split(", ")
    }
    selection = NamespaceSelection(selector="team")
    options = InstallOptions(IMAGE, jobs_namespaces=selection, kinds=ALL, parts=frozenset(InstallPart))
    roles = [
        role
        for role in [*of_kind(options, "ClusterRole"), *of_kind(options, "Role")]
        if role["metadata"]["name"].startswith(rbac.ARGO_AGENT)
    ]
    rules = [rule for role in roles for rule in role["rules"]]

    assert told == {(resource, verb) for _, resource, verb in rights(rules)}


def test_the_text_is_the_same_after_hera_is_imported() -> None:
    """Importing Hera changes how all of PyYAML writes lines of text; the text of manifests stays as it is."""
    importlib.import_module("hera.workflows")

    assert render_yaml([{"text": "two\nlines\n"}]) == "text: 'two\n\n  lines\n\n  '\n"
