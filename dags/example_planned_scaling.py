"""Train with an elastic job, ask its optimizer what it would change, let a person
decide, and carry out the plan.

The job's master measures the training and proposes changes. It does not carry them out
itself, since the job has no annotation that allows that. A person answers in Airflow
(Required Actions) within an hour. Without an answer, or after "Reject", training
continues unchanged. If the plan changes nothing, nobody is asked.

It needs a Kubernetes connection ``kubernetes_default``; the Airflow variables are those
of ``example_elastic_training``.
"""

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

from edl_workflows.airflow import elastic_job

BODY = """\
{% set plan = ti.xcom_pull('plan')['plan'] -%}
{% for role, wanted in plan.replicas.items() %}- {{ role }}: {{ wanted | tojson }}
{% endfor %}{% for pod in plan.migrate %}- {{ pod.name }} is replaced: {{ pod.resource | tojson }}
{% endfor %}
{% for what, why in plan.reasons.items() %}{{ what }}: {{ why }}
{% endfor %}"""

with DAG(
    "example_planned_scaling",
    schedule=None,
    catchup=False,
    doc_md=__doc__,
    tags=["example", "edl-workflows"],
    default_args={"retries": 1, "retry_delay": timedelta(seconds=10)},
    params={
        "optimize_mode": Param(
            "single-job", enum=["single-job", "cluster"], description="who plans"
        ),
        "ps": Param(1, type="integer", minimum=1, description="parameter servers at the beginning"),
        "workers": Param(1, type="integer", minimum=1, description="workers at the beginning"),
        "epochs": Param(200, type="integer", minimum=1, description="how often all data is seen"),
        "step_delay": Param(0.1, type="number", minimum=0, description="seconds of rest a step"),
    },
):
    with elastic_job(
        manifest="manifests/digits.yaml",
        completion_timeout=timedelta(hours=1),
        prefix_group_id=False,
    ) as job:
        # [START howto_plan_approve_apply]
        plan = job.plan(completion_timeout=timedelta(minutes=15))
        planned: Any = plan.output["plan"]

        @task.short_circuit(ignore_downstream_trigger_rules=False)
        def worthwhile(plan: dict[str, Any]) -> bool:
            """Ask nobody about nothing."""
            return not plan["empty"]

        approve = ApprovalOperator(
            task_id="approve",
            subject="Change the training job {{ ti.xcom_pull('plan')['name'] }}?",
            body=BODY,
            response_timeout=timedelta(hours=1),
            defaults="Reject",
        )
        plan >> worthwhile(planned) >> approve >> job.apply(planned)
        # [END howto_plan_approve_apply]
