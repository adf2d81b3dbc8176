"""Train on the digits with several learning rates, two jobs at a time, and determine
the best model.

Each configuration is an ElasticJob of its own. The jobs of all workflows of this
template share the queue ``edl-queue``, a ConfigMap that says how many jobs run at a
time: ``kubectl create configmap edl-queue --from-literal jobs=2``.

``python example_sweep.py [resource|plugin]`` prints the WorkflowTemplate.
"""

import sys
from typing import Any

from hera.workflows import DAG, Container, Parameter, WorkflowTemplate, models

from edl_workflows.pipelines.argo.templates import builders, workflows
from edl_workflows.pipelines.argo.templates.serializer import to_manifest, to_yaml
from edl_workflows.pipelines.argo.templates.step import WaitMode

CHECKPOINTS = "{{workflow.parameters.work-dir}}/{{workflow.name}}-{{item.name}}"

# Tags for numbers are not quoted, so that YAML reads the parameters' values as numbers.
SPEC = f"""\
replicaSpecs:
  worker:
    replicas: 1
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
              - {{{{workflow.parameters.python}}}}
              - -m
              - edl_workflows
              - agent
              - run
              - --
              - {{{{workflow.parameters.python}}}}
              - {{{{workflow.parameters.training-dir}}}}/train_digits_numpy.py
              - --checkpoint-dir={CHECKPOINTS}
              - --learning-rate={{{{item.rate}}}}
            resources:
              requests: {{cpu: 50m, memory: 256Mi}}
            securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
            volumeMounts:
              - {{name: checkpoints, mountPath: {CHECKPOINTS}}}
        volumes:
          - name: checkpoints
            hostPath: {{path: {CHECKPOINTS}, type: DirectoryOrCreate}} # embedded only
            # on Kubernetes: persistentVolumeClaim: {{claimName: training}}
"""

CHOOSE = """\
import json, sys
steps = json.loads(sys.argv[1])
models = [
    {**json.loads(step["training-metrics"]), "checkpoint": step["checkpoint-uri"]} for step in steps
]
print(json.dumps(max(models, key=lambda model: model["accuracy"]), sort_keys=True))
"""
"""The most accurate model on held-out digits."""

CONFIGURATIONS = """\
[{"name": "slow", "rate": "0.01"},
 {"name": "medium", "rate": "0.1"},
 {"name": "fast", "rate": "0.5"}]
"""
PARAMETERS = (
    Parameter(name="configurations", value=CONFIGURATIONS, description="a job for each"),
    Parameter(name="image", value="edl-workflows/digits:latest", description="image of all pods"),
    Parameter(name="python", value="python", description="interpreter in that image"),
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
        name="example-sweep",
        entrypoint="main",
        service_account_name=workflows.ACCOUNT,
        arguments=list(PARAMETERS),
    ) as workflow:
        choose = Container(
            name="choose",
            inputs=[Parameter(name="trained")],
            image="{{workflow.parameters.image}}",
            command=["{{workflow.parameters.python}}"],
            args=["-c", CHOOSE, "{{inputs.parameters.trained}}"],
        )
        # [START howto_argo_sweep]
        submit = builders.submit(waiting, queue="edl-queue")
        with DAG(name="main", outputs=[Parameter(name="best", value_from=BEST)]):
            trained: Any = submit(
                name="train",
                arguments={"name": "{{workflow.name}}-{{item.name}}", "spec": SPEC},
                with_param="{{workflow.parameters.configurations}}",
            )
            trained >> choose(arguments={"trained": "{{tasks.train.outputs.parameters}}"})
            # [END howto_argo_sweep]
    return workflow


BEST = models.ValueFrom(parameter="{{tasks.choose.outputs.result}}")

if __name__ == "__main__":
    chosen: WaitMode = "plugin" if sys.argv[1:] == ["plugin"] else "resource"
    print(to_yaml([to_manifest(pipeline(chosen))]), end="")
