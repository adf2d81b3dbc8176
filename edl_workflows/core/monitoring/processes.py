"""Metrics that several processes have."""

from edl_workflows.core.monitoring.metric import Label, counter, gauge, histogram

KIND = Label("kind")
NAMESPACE = Label("namespace")

API_REQUESTS = counter(
    "edl_api_requests_total",
    "Requests to the Kubernetes API by verb, resource and status code (0: no response); each retry counts.",
    Label("verb"),
    Label("resource"),
    Label("code"),
)
API_SECONDS = histogram(
    "edl_api_request_seconds",
    "Time until the Kubernetes API responded; watches are not counted.",
    Label("verb"),
)
API_METRICS = (API_REQUESTS, API_SECONDS)

PROCESS_METRICS = (
    counter("process_cpu_seconds_total", "CPU time that the process has used.", unit="seconds"),
    gauge("process_resident_memory_bytes", "Resident memory of the process.", unit="bytes"),
    gauge("process_virtual_memory_bytes", "Virtual memory of the process.", unit="bytes"),
    gauge("process_start_time_seconds", "When the process began, in Unix seconds.", unit="seconds"),
    gauge("process_open_fds", "Open file descriptors of the process."),
    gauge("process_max_fds", "Most file descriptors that the process may open."),
)
"""What the client library for Prometheus measures of the process itself."""

SERVER_METRICS = (*API_METRICS, *PROCESS_METRICS)
