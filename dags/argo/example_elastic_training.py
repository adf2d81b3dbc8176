"""Train an elastic job, change it while it trains, evaluate what it learned, and
publish the model if it is good enough.

Training starts with 2 parameter servers and 1 worker. Then 2 workers join. Then one
parameter server is replaced by one with more CPU, and a third one is added: the job
saves a checkpoint, stops briefly, and restarts from the checkpoint. The model must pass
a gate on held-out data.

``python example_elastic_training.py [resource|plugin]`` prints the WorkflowTemplate.
Its stages, inputs and outputs are those of the Airflow example of the same name.
"""

import sys
from typing import Any

from hera.workflows import DAG, Container, Parameter, WorkflowTemplate, models

from edl_workflows.pipelines.argo.templates import builders, groups, workflows
from edl_workflows.pipelines.argo.templates.groups import output
from edl_workflows.pipelines.argo.templates.serializer import to_manifest, to_yaml
from edl_workflows.pipelines.argo.templates.step import WaitMode

WORK = "{{workflow.parameters.work-dir}}"
CHECKPOINTS = f"{WORK}/{{{{workflow.name}}}}"

# Tags for numbers are not quoted, so that YAML reads the parameters' values as numbers.
SPEC = f"""\
distributionStrategy: ParameterServerStrategy
optimizeMode: manual
replicaSpecs:
  ps:
    replicas: {{{{workflow.parameters.ps}}}}
    template: &node
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
              - {{{{workflow.parameters.training-dir}}}}/train_digits.py
              - --checkpoint-dir={CHECKPOINTS}
              - --epochs={{{{workflow.parameters.epochs}}}}
              - --step-delay={{{{workflow.parameters.step-delay}}}}
            resources:
              requests: {{cpu: 50m, memory: 512Mi}}
            securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
            volumeMounts:
              - {{name: checkpoints, mountPath: {CHECKPOINTS}}}
        volumes:
          - name: checkpoints
            hostPath: {{path: {CHECKPOINTS}, type: DirectoryOrCreate}} # embedded only
            # on Kubernetes: persistentVolumeClaim: {{claimName: training}}
  worker:
    replicas: {{{{workflow.parameters.workers}}}}
    template: *node
  dlrover-master:
    template:
      spec:
        containers:
          - name: main
            image: {{{{workflow.parameters.image}}}}
            command: ["{{{{workflow.parameters.python}}}}", -m, edl_workflows, master, run]
            resources:
              requests: {{cpu: 100m, memory: 256Mi}}
"""

PARAMETERS = (
    Parameter(name="ps", value="2", description="parameter servers at the beginning"),
    Parameter(name="workers", value="1", description="workers at the beginning"),
    Parameter(name="epochs", value="70", description="how often all data is seen"),
    Parameter(
        name="step-delay", value="0.1", description="seconds of rest a step, to watch it train"
    ),
    Parameter(name="warm-up-steps", value="50", description="steps before the job is changed"),
    Parameter(name="min-accuracy", value="0.93", description="gate of the model, on held-out data"),
    Parameter(name="name", value="", description="the job's name; empty: made of the workflow's"),
    Parameter(
        name="clean-up", value="delete", description="of a job left over: delete, suspend or keep"
    ),
    Parameter(
        name="image", value="edl-workflows/digits:latest", description="image of all containers"
    ),
    Parameter(name="python", value="python", description="Python in that image"),
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

WARM_UP = "{{workflow.parameters.warm-up-steps}}"

PUBLISH = """\
import json, sys
metrics, least = json.loads(sys.argv[1]), float(sys.argv[2])
accuracy = metrics["accuracy"]
if accuracy < least:
    sys.exit(f"accuracy {accuracy} on held-out data is below {least}; the model is not published")
print(json.dumps(metrics, sort_keys=True))
"""


def python(name: str, *arguments: str, inputs: tuple[str, ...]) -> Container:
    """A step that runs Python with the volume of the checkpoints."""
    return Container(
        name=name,
        inputs=[Parameter(name=one) for one in inputs],
        image="{{workflow.parameters.image}}",
        command=["{{workflow.parameters.python}}"],
        args=list(arguments),
        volume_mounts=[models.VolumeMount(name="work", mount_path=WORK)],
    )


def pipeline(waiting: WaitMode) -> WorkflowTemplate:
    """The workflow, whose steps wait as `waiting` says."""
    with without_steps() as workflow:
        groups.clean_up(waiting)
        # [START howto_argo_stages]
        submit = builders.submit(waiting, wait=False)
        wait = builders.wait_for_job(waiting)
        scale = builders.scale(waiting)
        migration = groups.checkpoint_migrate_restart(waiting, "more-parameter-servers")
        # [END howto_argo_stages]
        evaluate, publish = evaluate_and_publish()
        with DAG(name="main", outputs=outputs()):
            submitted: Any = submit(arguments={"name": workflows.JOB_NAME, "spec": SPEC})
            job = output(submitted, "name")
            running: Any = wait(
                name="running",
                arguments={"name": job, "phases": "Running", "step": WARM_UP, "timeout": "10m"},
            )
            # [START howto_argo_scale]
            scaled: Any = scale(
                name="scale-workers",
                arguments={"job": job, "replicas": "{worker: {replicas: 3}}", "timeout": "5m"},
            )
            # [END howto_argo_scale]
            migrated: Any = migration(
                name="more-parameter-servers",
                arguments={"job": job, "replicas": "3", "migrate": "{0: {cpu: 100m}}"},
            )
            trained: Any = wait(name="trained", arguments={"name": job, "timeout": "1h"})
            evaluated: Any = evaluate(
                arguments={"checkpoint-uri": output(trained, "checkpoint-uri")}
            )
            published: Any = publish(arguments={"metrics": "{{tasks.evaluate.outputs.result}}"})
            submitted >> running >> scaled >> migrated >> trained >> evaluated >> published
    return workflow


def without_steps() -> WorkflowTemplate:
    """The workflow without steps: its parameters, service account, volume and exit handler."""
    work = models.HostPathVolumeSource(path=WORK, type="DirectoryOrCreate")
    return WorkflowTemplate(
        name="example-elastic-training",
        entrypoint="main",
        service_account_name=workflows.ACCOUNT,
        arguments=list(PARAMETERS),
        volumes=[models.Volume(name="work", host_path=work)],
        hooks=workflows.on_exit(),
    )


def evaluate_and_publish() -> tuple[Container, Container]:
    """The steps after the training: one evaluates the newest checkpoint on held-out
    data, the other is the gate that publishes the model."""
    program = "{{workflow.parameters.training-dir}}/evaluate_digits.py"
    least = "{{workflow.parameters.min-accuracy}}"
    evaluate = (program, "--checkpoint-dir", CHECKPOINTS)
    publish = ("-c", PUBLISH, "{{inputs.parameters.metrics}}", least)
    return (
        python("evaluate", *evaluate, inputs=("checkpoint-uri",)),
        python("publish", *publish, inputs=("metrics",)),
    )


def outputs() -> list[Parameter]:
    """The outputs of the workflow: those of the job, and the metrics of the model."""
    published = models.ValueFrom(parameter="{{tasks.publish.outputs.result}}")
    return [*groups.outputs_of("trained"), Parameter(name="metrics", value_from=published)]


if __name__ == "__main__":
    chosen: WaitMode = "plugin" if sys.argv[1:] == ["plugin"] else "resource"
    print(to_yaml([to_manifest(pipeline(chosen))]), end="")
