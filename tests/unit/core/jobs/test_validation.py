"""Manifests as users write them: what is taken, and what each mistake is answered with."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, OptimizeMode
from edl_workflows.core.jobs.scale_plan.model import NodeResource, ScalePlan
from edl_workflows.services.master.state.settings import Timeouts, merge_resources, settings_of

Make = Callable[..., dict[str, Any]]

UPSTREAM_PS_JOB = """
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata: {name: deepfm, namespace: ads}
spec:
  distributionStrategy: ParameterServerStrategy
  optimizeMode: cluster
  enableDynamicSharding: true
  enableElasticScheduling: true
  envs:
    DATA_DIR: {value: /data}
    ZONE: {name: ZONE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  resourceLimits: {cpu: 6, memory: 8192Mi}
  replicaSpecs:
    ps:
      autoScale: true
      restartCount: 3
      priority: "high"
      template:
        metadata: {annotations: {sidecar.istio.io/inject: "false"}}
        spec:
          restartPolicy: Always
          containers:
            - {name: main, image: "train:1", command: [python, -m, deepfm], \
resources: {requests: {cpu: 1, memory: 4Gi}}}
          volumes: [{name: nas, persistentVolumeClaim: {claimName: nas}}]
    worker:
      restartPolicy: Always
      BatchScheduler: volcano
      priority: "0.5"
      template: {spec: {containers: [{name: main, image: "train:1"}]}}
    dlrover-master:
      template: {spec: {containers: [{name: main, imagePullPolicy: Always}]}}
"""

ROLE = {"replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}}

UPSTREAM_PLAN = """
apiVersion: elastic.iml.github.io/v1alpha1
kind: ScalePlan
metadata: {name: more, labels: {elasticjob-name: deepfm, scale-type: manual}}
spec:
  replicaResourceSpecs:
    ps: {replicas: 1, resource: {cpu: "0.5", memory: 256Mi}}
    worker: {replicas: 2}
  migratePods: [{name: deepfm-edljob-ps-0, resource: {cpu: 4, memory: "1024Mi"}}]
"""


def problems(model: type[ElasticJob] | type[ScalePlan], manifest: dict[str, Any]) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        model.parse(manifest)
    return [str(problem) for problem in caught.value.problems]


def edited(manifest: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with `value` at the dotted path."""
    manifest = copy.deepcopy(manifest)
    target: Any = manifest
    *parents, last = path.split(".")
    for part in parents:
        target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
    target[last] = value
    return manifest


def test_upstream_job_is_taken() -> None:
    """A manifest with everything that DLRover's users write is accepted, with its values."""
    job = ElasticJob.parse(yaml.safe_load(UPSTREAM_PS_JOB))

    assert job.spec.optimize_mode is OptimizeMode.CLUSTER
    assert job.spec.resource_limits.cpu == "6"
    assert job.spec.resource_limits.gpu == "4"
    assert job.spec.replica_specs["worker"].batch_scheduler == "volcano"
    assert job.spec.replica_specs["ps"].replicas == 0


@pytest.mark.parametrize(
    ("role", "template", "found"),
    [
        pytest.param(None, "Always", "Always", id="in the template, as DLRover reads it"),
        pytest.param("Never", "Always", "Never", id="the role's own wins"),
        pytest.param("Always", None, "Always", id="the role's own alone"),
        pytest.param(None, None, "Never", id="default"),
        pytest.param(None, "OnFailure", "OnFailure", id="another policy in the template"),
    ],
)
def test_restart_policy_of_a_role(role: str | None, template: str | None, found: str) -> None:
    """Upstream's manifests have the restart policy in the pod template. With Always, the master also replaces
    nodes after fatal exit codes."""
    manifest = yaml.safe_load(UPSTREAM_PS_JOB)
    worker = manifest["spec"]["replicaSpecs"]["worker"]
    worker.pop("restartPolicy", None)
    worker["template"]["spec"].pop("restartPolicy", None)
    worker |= {"restartPolicy": role} if role else {}
    worker["template"]["spec"] |= {"restartPolicy": template} if template else {}
    job = ElasticJob.parse(manifest)

    assert job.spec.replica_specs["worker"].policy == found
    settings = settings_of(job, "default", Timeouts())
    assert settings.roles["worker"].restart_always == (found == "Always")


def test_upstream_plan_is_taken() -> None:
    """A plan may name its job by the older label alone."""
    plan = ScalePlan.parse(yaml.safe_load(UPSTREAM_PLAN))

    assert plan.job == "deepfm"
    assert not plan.auto
    assert plan.spec.migrate_pods[0].resource.cpu == "4"


def test_manifest_survives_a_round_trip() -> None:
    """A manifest that was written and parsed again gives the same value."""
    job = ElasticJob.parse(yaml.safe_load(UPSTREAM_PS_JOB))

    assert ElasticJob.parse(job.to_dict()) == job


@pytest.mark.parametrize(
    ("path", "value", "answer"),
    [
        pytest.param(
            "spec.replicaSpec", {}, "spec.replicaSpec: unknown field; did you mean 'replicaSpecs'?", id="typo"
        ),
        pytest.param(
            "spec.replicaSpecs.worker.replica",
            1,
            "spec.replicaSpecs.worker.replica: unknown field; did you mean 'replicas'?",
            id="typo in a role",
        ),
        pytest.param(
            "spec.replicaSpecs.worker.replicas",
            -1,
            "spec.replicaSpecs.worker.replicas: Input should be greater than or equal to 0 (got -1)",
            id="negative count",
        ),
        pytest.param(
            "spec.replicaSpecs.worker.replicas",
            "three",
            "spec.replicaSpecs.worker.replicas: Input should be a valid integer, "
            "unable to parse string as an integer (got 'three')",
            id="wrong type",
        ),
        pytest.param(
            "spec.replicaSpecs.master",
            {},
            "spec.replicaSpecs.master: "
            "Input should be 'ps', 'worker', 'chief', 'evaluator' or 'dlrover-master' (got 'master')",
            id="unknown role",
        ),
        pytest.param(
            "spec.optimizeMode",
            "manunal",
            "spec.optimizeMode: Input should be 'manual', 'single-job' or 'cluster' (got 'manunal')",
            id="unknown mode",
        ),
        pytest.param(
            "spec.resourceLimits",
            {"cpu": "4 cores"},
            "spec.resourceLimits.cpu: '4 cores' is not a Kubernetes quantity such as '500m', '2' or '4Gi' "
            "(got '4 cores')",
            id="no quantity",
        ),
        pytest.param(
            "spec.replicaSpecs.chief",
            {"replicas": 2, "template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}},
            "spec.replicaSpecs.chief.replicas: a job has one chief (got 2)",
            id="two chiefs",
        ),
        pytest.param(
            "spec.distributionStrategy",
            "AllreduceStrategy",
            "spec.replicaSpecs.ps: AllreduceStrategy has no parameter servers; "
            "remove the role or the strategy",
            id="allreduce with parameter servers",
        ),
        pytest.param(
            "spec",
            {
                "distributionStrategy": "AllreduceStrategy",
                "replicaSpecs": {"worker": ROLE, "chief": ROLE},
            },
            "spec.replicaSpecs.chief: AllreduceStrategy has no chief: "
            "the oldest worker is it; make it one more worker",
            id="allreduce with a chief",
        ),
        pytest.param(
            "spec",
            {
                "distributionStrategy": "AllreduceStrategy",
                "replicaSpecs": {"worker": ROLE},
                "rendezvous": {"minNodes": 3, "maxNodes": 2},
            },
            "spec.rendezvous.minNodes: minNodes (3) can't be above maxNodes (2)",
            id="a world of more than the most",
        ),
        pytest.param(
            "spec.rendezvous",
            {"joinTimeoutSeconds": 10**12},
            "spec.rendezvous.joinTimeoutSeconds: "
            "Input should be less than or equal to 31536000 (got 1000000000000)",
            id="a time-out beyond all calendars",
        ),
        pytest.param(
            "spec.faultTolerance",
            {"nodeCheckTimeoutSeconds": 100_000},
            "spec.faultTolerance.nodeCheckTimeoutSeconds: "
            "Input should be less than or equal to 86400 (got 100000)",
            id="a round of checks that agents would not understand",
        ),
        pytest.param(
            "spec.replicaSpecs.worker.template",
            {},
            "spec.replicaSpecs.worker.template.spec.containers: at least one container is needed",
            id="no container",
        ),
        pytest.param(
            "spec.replicaSpecs.worker.template.spec.containers",
            [{"name": "main"}],
            "spec.replicaSpecs.worker.template.spec.containers.0.image: required field is missing",
            id="no image",
        ),
        pytest.param(
            "spec.replicaSpecs.worker.template.spec.containers",
            [{"name": "main", "image": "i", "resources": {"limits": {"memory": "lots"}}}],
            "spec.replicaSpecs.worker.template.spec.containers.0.resources.limits.memory: "
            "'lots' is not a Kubernetes quantity such as '500m', '2' or '4Gi'",
            id="no quantity in a template",
        ),
        pytest.param(
            "spec.replicaSpecs.worker.template.metadata",
            {"labels": {"tier": 1}},
            "spec.replicaSpecs.worker.template.metadata.labels: "
            "must be a map of strings; write numbers and booleans in quotes",
            id="label that is no string",
        ),
        pytest.param(
            "spec.envs",
            {"NODE_ID": {"value": "7"}},
            "spec.envs.NODE_ID: is set by the controller; choose another name",
            id="reserved variable",
        ),
        pytest.param(
            "spec.envs",
            {"A": {"value": 7}},
            "spec.envs.A.value: Input should be a valid string (got 7)",
            id="variable that is no string",
        ),
        pytest.param(
            "metadata.name",
            "a" * 38,
            "metadata.name: has 38 characters, at most 37 are possible: "
            "the names of the job's services add to it, and hold 63",
            id="long name",
        ),
        pytest.param(
            "metadata.name",
            "Digits_1",
            "metadata.name: 'Digits_1' must be lower-case letters, digits and '-', beginning with a letter",
            id="bad name",
        ),
        pytest.param(
            "metadata.name",
            "",
            "metadata.name: required field is missing (or metadata.generateName)",
            id="no name",
        ),
    ],
)  # fmt: skip
def test_mistake_in_a_job_is_named(job: Make, path: str, value: Any, answer: str) -> None:
    """Each mistake in a job gives one problem with the field path and what to do."""
    assert problems(ElasticJob, edited(job(), path, value)) == [answer]


def test_a_size_names_resources_as_pods_do() -> None:
    """A size may name any resource that a container can request; `nvidia.com/gpu` is `gpu`. As upstream, CPU
    or memory of zero means that it is not set."""
    said = {
        "cpu": 0,
        "memory": "0",
        "nvidia.com/gpu": 2,
        "amd.com/gpu": "1",
        "ephemeral-storage": "8Gi",
        "hugepages-2Mi": "4Mi",
    }
    size = NodeResource.model_validate(said)

    assert (size.cpu, size.memory, size.gpu) == (None, None, "2")
    kept = {"gpu": "2", "amd.com/gpu": "1", "ephemeral-storage": "8Gi", "hugepages-2Mi": "4Mi"}
    assert size.to_dict() == kept
    assert NodeResource.model_validate_json(size.model_dump_json()) == size
    assert merge_resources(NodeResource.model_validate({"amd.com/gpu": 4}), size).to_dict() == kept | {
        "amd.com/gpu": "4"
    }


@pytest.mark.parametrize(
    ("path", "value", "answer"),
    [
        pytest.param(
            "spec.migratePods", [{"name": "p", "resource": {"memmory": "1Gi"}}],
            "spec.migratePods.0.resource.memmory: no resource of a container is called so; "
            "did you mean 'memory'?",
            id="typo in a size",
        ),
        pytest.param(
            "spec.migratePods", [{"name": "p", "resource": {"gpu": 1, "nvidia.com/gpu": 1}}],
            "spec.migratePods.0.resource.nvidia.com/gpu: gpu says it already; leave one of them out",
            id="GPUs twice",
        ),
        pytest.param(
            "spec.migratePods", [{"name": "p", "resource": {"amd.com/gpu": "-1"}}],
            "spec.migratePods.0.resource.amd.com/gpu: '-1' is negative (got '-1')", id="fewer than none",
        ),
        pytest.param(
            "spec.ownerJob", "other",
            "spec.ownerJob: says 'other', the label 'elasticjob.dlrover/name' 'digits'",
            id="two jobs",
        ),
        pytest.param(
            "metadata.labels", {},
            "spec.ownerJob: name the ElasticJob here or in the label 'elasticjob.dlrover/name'",
            id="no job",
        ),
        pytest.param(
            "spec.migratePod", [], "spec.migratePod: unknown field; did you mean 'migratePods'?", id="typo"
        ),
        pytest.param(
            "spec.removePods", [{}], "spec.removePods.0.name: required field is missing",
            id="pod without a name",
        ),
        pytest.param(
            "spec.stepTimeoutSeconds",
            0,
            "spec.stepTimeoutSeconds: Input should be greater than or equal to 1 (got 0)",
            id="no time",
        ),
    ],
)  # fmt: skip
def test_mistake_in_a_plan_is_named(plan: Make, path: str, value: Any, answer: str) -> None:
    """Each mistake in a plan gives one problem with the field path and what to do."""
    manifest = plan()
    if path == "metadata.labels":
        manifest["spec"] = {}
    assert problems(ScalePlan, edited(manifest, path, value)) == [answer]


def test_all_problems_are_told_at_once(job: Make) -> None:
    """All mistakes of a manifest are reported at once."""
    manifest = edited(job(), "spec.replicaSpecs.ps.template", {})
    manifest = edited(manifest, "spec.envs", {"JOB_UID": {"value": "x"}})

    assert [p.split(":")[0] for p in problems(ElasticJob, manifest)] == [
        "spec.replicaSpecs.ps.template.spec.containers",
        "spec.envs.JOB_UID",
    ]


def test_empty_metadata_is_no_mistake(job: Make) -> None:
    """Metadata fields that YAML reads as null, as after ``labels:``, are accepted, as the API server does."""
    manifest = job()
    manifest["metadata"] |= {
        "labels": None,
        "annotations": None,
        "ownerReferences": None,
        "creationTimestamp": None,
    }

    assert ElasticJob.parse(manifest).metadata.labels == {}


def test_longest_name_fits(job: Make) -> None:
    """The services of a job with the longest name have valid names."""
    from edl_workflows.core.kubernetes import names

    manifest = job()
    manifest["metadata"]["name"] = "a" * names.MAX_JOB_NAME
    ElasticJob.parse(manifest)

    assert len(names.master_name("a" * names.MAX_JOB_NAME)) == 63
    assert len(names.node_name("a" * names.MAX_JOB_NAME, "evaluator", 999)) <= 63


def test_generated_names_leave_room(job: Make) -> None:
    """The length of generateName is checked together with the five characters that the server adds."""
    manifest = job()
    manifest["metadata"] = {"generateName": "a" * 33}

    assert problems(ElasticJob, manifest)[0].startswith(
        "metadata.generateName: has 33 characters, at most 32"
    )


def test_status_of_a_newer_writer_is_read(job: Make) -> None:
    """Unknown fields in a status, which a newer writer may have set, are ignored."""
    found = ElasticJob.parse(job() | {"status": {"phase": "Running", "forecast": 0.9}})

    assert found.status.phase == "Running"
