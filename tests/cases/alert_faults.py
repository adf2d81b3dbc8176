"""Each alert with the series of a fault that it must notice, as `promtool test rules` takes them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    """What Prometheus stores each minute, and the alert that must fire.

    Attributes:
        series: the values of each series, in promtool's notation.
        minutes: when the alert must fire.
        summary: of the alert.
        labels: of the alert, besides its severity.
    """

    series: dict[str, str]
    minutes: int
    summary: str
    labels: dict[str, str] = field(default_factory=dict)


_IN_ML = {"kind": "ElasticJob", "namespace": "ml"}
_JOB = 'namespace="ml", job_name="digits"'

FAULTS = {
    "EdlNoLeadingController": Fault(
        {'edl_controller_leading{pod="a"}': "1x5 0x20", 'edl_controller_leading{pod="b"}': "0x25"},
        12,
        "No controller leads",
    ),
    "EdlReconciliationsFail": Fault(
        {'edl_controller_reconcile_total{kind="TFJob", result="defect"}': "0x5 1+1x40"},
        30,
        "Reconciliations of TFJobs fail (defect)",
        {"kind": "TFJob", "result": "defect"},
    ),
    "EdlControllerFallsBehind": Fault(
        {'edl_controller_queue_depth{pod="a"}': "0x5 400x20"},
        20,
        "400 jobs wait for a worker thread of the controller",
    ),
    "EdlDefinitionMissing": Fault(
        {'edl_controller_definition_missing{kind="DIJob"}': "0x5 1x20"},
        12,
        "The API server has no DIJobs",
        {"kind": "DIJob"},
    ),
    "EdlApiRequestsFail": Fault(
        {
            'edl_api_requests_total{verb="list", resource="pods", code="200"}': "0+30x60",
            'edl_api_requests_total{verb="list", resource="pods", code="503"}': "0+10x60",
        },
        30,
        "25% of the requests to list pods fail",
        {"verb": "list", "resource": "pods"},
    ),
    "EdlJobHangs": Fault(
        {f"edl_master_hanging{{{_JOB}}}": "0x5 1x20"},
        12,
        "Training of ml/digits stands still",
        {"namespace": "ml", "job_name": "digits"},
    ),
    "EdlCheckpointsFail": Fault(
        {f"edl_master_failed_saves{{{_JOB}}}": "0x5 3x20"},
        17,
        "ml/digits has failed to save 3 checkpoints in a row",
        {"namespace": "ml", "job_name": "digits"},
    ),
    "EdlJobRestartsOften": Fault(
        {'edl_job_restarts_total{kind="ElasticJob", namespace="ml", cause="OOMKilled"}': "0x5 1+1x60"},
        60,
        "ElasticJobs in ml were restarted more than 10 times in an hour: OOMKilled",
        {**_IN_ML, "cause": "OOMKilled"},
    ),
    "EdlJobsWaitLong": Fault(
        {'edl_jobs_longest_wait_seconds{kind="ElasticJob", namespace="ml"}': "0+60x180"},
        140,
        "A job in ml (ElasticJob) has waited for 2h 20m 0s",
        _IN_ML,
    ),
    "EdlJobsFail": Fault(
        {'edl_jobs{kind="ElasticJob", namespace="ml", phase="Failed"}': "1x10 2x20"},
        15,
        "ElasticJobs in ml have failed",
        _IN_ML,
    ),
    "EdlResourcesAreLost": Fault(
        {
            f'edl_job_gpu_hours{{{_JOB}, part="useful"}}': "3x60",
            f'edl_job_gpu_hours{{{_JOB}, part="lost"}}': "1x60",
        },
        40,
        "25% of the GPU-hours in ml are lost",
        {"namespace": "ml"},
    ),
    "EdlBrainStoreFallsBehind": Fault(
        {'edl_brain_store_waiting{pod="a"}': "0x5 5000x20"},
        20,
        "5000 writes wait for the Brain's database",
    ),
    "EdlBrainAnswersFail": Fault(
        {'edl_brain_answers_total{method="POST", call="optimize", code="500"}': "0x5 1+1x40"},
        30,
        "The Brain's call optimize fails",
        {"call": "optimize"},
    ),
    "EdlArgoStepsFail": Fault(
        {'edl_argo_agent_results_total{stage="submit", phase="Error"}': "0x5 1+1x40"},
        30,
        "Steps of workflows fail with an error: stage submit",
        {"stage": "submit"},
    ),
    "EdlDiServerAnswersFail": Fault(
        {'edl_di_server_answers_total{method="GET", call="replicas", code="503"}': "0x5 1+1x40"},
        30,
        "The DI server's call replicas fails",
        {"call": "replicas"},
    ),
}
