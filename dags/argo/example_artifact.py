"""Train on the digits with checkpoints in an object store, and evaluate the newest
checkpoint. The evaluating step gets it as an artifact, which Argo downloads from where
the training saved it.

The store is the bucket of Argo's artifact repository. The training program reads the
credentials from the Secret ``object-store``, for S3 ``AWS_ACCESS_KEY_ID`` and
``AWS_SECRET_ACCESS_KEY``; its image contains the package with the extra ``fsspec`` and
the store's driver, ``s3fs``. The evaluating step needs neither the Secret nor these
packages.

``python example_artifact.py [resource|plugin]`` prints the WorkflowTemplate.
"""

import sys
from typing import Any

from hera.workflows import DAG, Artifact, Container, Parameter, WorkflowTemplate, models

from edl_workflows.pipelines.argo.templates import builders, workflows
from edl_workflows.pipelines.argo.templates.artifacts import saved_artifact
from edl_workflows.pipelines.argo.templates.groups import output, outputs_of
from edl_workflows.pipelines.argo.templates.serializer import to_manifest, to_yaml
from edl_workflows.pipelines.argo.templates.step import WaitMode

# Tags for numbers are not quoted, so that YAML reads the parameters' values as numbers.
SPEC = """\
replicaSpecs:
  worker:
    replicas: 1
    template:
      spec:
        securityContext:
          seccompProfile: {type: RuntimeDefault}
          # on Kubernetes: runAsNonRoot: true
        containers:
          - name: main
            image: {{workflow.parameters.image}}
            command:
              - {{workflow.parameters.python}}
              - -m
              - edl_workflows
              - agent
              - run
              - --
              - {{workflow.parameters.python}}
              - {{workflow.parameters.training-dir}}/train_digits_numpy.py
              - --checkpoint-dir={{workflow.parameters.store}}/{{workflow.name}}
            envFrom:
              - secretRef: {name: object-store}
            securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
            resources:
              requests: {cpu: 50m, memory: 256Mi}
"""

EVALUATE = """\
import json, sys
import numpy as np
from sklearn.datasets import load_digits
data = load_digits()
scores = data.data[1437:] / 16.0 @ np.load(sys.argv[1])
print(json.dumps({"accuracy": float((scores.argmax(axis=1) == data.target[1437:]).mean())}))
"""
"""The accuracy on held-out digits."""

PARAMETERS = (
    Parameter(name="store", value="s3://models/digits", description="where checkpoints are saved"),
    Parameter(name="image", value="edl-workflows/digits:latest", description="image of all pods"),
    Parameter(name="python", value="python", description="interpreter in that image"),
    Parameter(
        name="training-dir",
        value="/opt/training",
        description="folder with the programs, in that image",
    ),
)


def pipeline(waiting: WaitMode) -> WorkflowTemplate:
    """The workflow, whose steps wait as `waiting` says."""
    with WorkflowTemplate(
        name="example-artifact",
        entrypoint="main",
        service_account_name=workflows.ACCOUNT,
        arguments=list(PARAMETERS),
    ) as workflow:
        # [START howto_argo_artifact]
        submit = builders.submit(waiting)
        evaluate = Container(
            name="evaluate",
            inputs=[Artifact(name="checkpoint", path="/mnt/checkpoint")],
            image="{{workflow.parameters.image}}",
            command=["{{workflow.parameters.python}}"],
            args=["-c", EVALUATE, "/mnt/checkpoint/weights.npy"],
        )
        with DAG(
            name="main",
            outputs=[*outputs_of("train"), Parameter(name="metrics", value_from=METRICS)],
        ):
            trained: Any = submit(
                name="train", arguments={"name": "{{workflow.name}}", "spec": SPEC}
            )
            checkpoint = saved_artifact("checkpoint", output(trained, "checkpoint-uri"))
            trained >> evaluate(arguments=[checkpoint])
            # [END howto_argo_artifact]
    return workflow


METRICS = models.ValueFrom(parameter="{{tasks.evaluate.outputs.result}}")

if __name__ == "__main__":
    chosen: WaitMode = "plugin" if sys.argv[1:] == ["plugin"] else "resource"
    print(to_yaml([to_manifest(pipeline(chosen))]), end="")
