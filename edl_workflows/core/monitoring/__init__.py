"""The metrics that the processes export for Prometheus, each declared once. Pure.

- `metric`: what a declaration consists of
- `processes`: metrics that several processes have
- `controller`, `master`, `servers`: those of the controller, of a job's master, and of the other servers
- `durations`: histograms that pure code counts
- `catalog`: all processes with their metrics

Processes build their metrics from these declarations (`edl_workflows.runtime.process.metrics`), and so does
the reference page.
"""
