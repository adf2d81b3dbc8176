"""What a monitoring stack needs of an installation, made from the declared metrics. Pure.

- `alerts`: the alerts, with what to do about each
- `dashboards`: Grafana's dashboards
- `manifests`: rules, dashboards and monitors as objects for Prometheus' operator and Grafana's sidecar, or as
  files
"""
