"""Train with workers that sum their gradients, and let two more join while they train.

The global batch size is fixed at the size for the largest number of workers, so the
model does not depend on when workers join.

``python example_collective_training.py [resource|plugin]`` prints the WorkflowTemplate.
Its stages are those of the Airflow example of the same name, without the evaluation.
"""

import sys
from typing import Any

from hera.workflows import DAG, Parameter, WorkflowTemplate

from edl_workflows.pipelines.argo.templates import builders, groups, workflows
from edl_workflows.pipelines.argo.templates.groups import output
from edl_workflows.pipelines.argo.templates.serializer import to_manifest, to_yaml
from edl_workflows.pipelines.argo.templates.step import WaitMode

CHECKPOINTS = "{{workflow.parameters.work-dir}}/{{workflow.name}}"

# Tags for numbers are not quoted, so that YAML reads the parameters' values as numbers.
SPEC = f"""\
distributionStrategy: AllreduceStrategy
optimizeMode: manual
rendezvous:
  maxNodes: {{{{workflow.parameters.max-workers}}}}
  waitingTimeoutSeconds: 10
replicaSpecs:
  worker:
    replicas: {{{{workflow.parameters.workers}}}}
    template:
      spec:
        securityContext:
          seccompProfile: {{type: RuntimeDefault}}
          # on Kubernetes: runAsNonRoot: true
          # on Kubernetes: fsGroup: 65532
        containers:
          - name: main
            image: {{{{workflow.parameters.image}}}}
            command:
              - python
              - -m
              - edl_workflows
              - agent
              - run
              - --
              - python
              - {{{{workflow.parameters.training-dir}}}}/train_digits_allreduce.py
              - --checkpoint-dir={CHECKPOINTS}
              - --epochs={{{{workflow.parameters.epochs}}}}
            resources:
              requests: {{cpu: 50m, memory: 768Mi}}
            securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
            volumeMounts:
              - {{name: checkpoints, mountPath: {CHECKPOINTS}}}
        volumes:
          - name: checkpoints
            hostPath: {{path: {CHECKPOINTS}, type: DirectoryOrCreate}} # embedded only
            # on Kubernetes: persistentVolumeClaim: {{claimName: training}}
"""

PARAMETERS = (
    Parameter(name="workers", value="1", description="workers at the beginning"),
    Parameter(name="max-workers", value="4", description="mini-batches of a step"),
    Parameter(name="epochs", value="100", description="how often all data is seen"),
    Parameter(name="name", value="", description="the job's name; empty: made of the workflow's"),
    Parameter(
        name="clean-up", value="delete", description="of a job left over: delete, suspend or keep"
    ),
    Parameter(
        name="image", value="edl-workflows/digits:latest", description="image of the workers"
    ),
    Parameter(
        name="training-dir",
        value="/opt/training",
        description="folder with the programs, in that image",
    ),
    Parameter(
        name="work-dir",
        value="/srv/edl-workflows",
        description="for checkpoints; all nodes share it",
    ),
)


def pipeline(waiting: WaitMode) -> WorkflowTemplate:
    """The workflow, whose steps wait as `waiting` says."""
    with WorkflowTemplate(
        name="example-collective-training",
        entrypoint="main",
        service_account_name=workflows.ACCOUNT,
        arguments=list(PARAMETERS),
        hooks=workflows.on_exit(),
    ) as workflow:
        groups.clean_up(waiting)
        submit = builders.submit(waiting, wait=False)
        wait = builders.wait_for_job(waiting)
        scale = builders.scale(waiting)
        with DAG(name="main", outputs=groups.outputs_of("trained")):
            # [START howto_argo_collective]
            submitted: Any = submit(arguments={"name": workflows.JOB_NAME, "spec": SPEC})
            job = output(submitted, "name")
            running: Any = wait(
                name="running",
                arguments={"name": job, "phases": "Running", "step": "50", "timeout": "10m"},
            )
            scaled: Any = scale(
                name="more-workers",
                arguments={"job": job, "replicas": "{worker: {replicas: 3}}", "timeout": "10m"},
            )
            trained: Any = wait(name="trained", arguments={"name": job, "timeout": "1h"})
            submitted >> running >> scaled >> trained
            # [END howto_argo_collective]
    return workflow


if __name__ == "__main__":
    chosen: WaitMode = "plugin" if sys.argv[1:] == ["plugin"] else "resource"
    print(to_yaml([to_manifest(pipeline(chosen))]), end="")
