"""Messages between a job's master, its agents and the Brain (HTTP + JSON), and the formats of what pods
report.

- `message`: the base class of every message
- `nodes`, `cluster`, `datasets`, `training`, `sync`: what a master and its agents tell each other
- `routes`: the calls of a master's HTTP API, with their messages
- `brain`: what masters and the Brain tell each other
- `metrics`, `function_result`, `reported`, `reported_text`: what a training program reports, and its bounds
- `addresses`: the variables and the map by which the embedded cluster replaces a pod network
- `log_lines`, `trace_context`, `permutation`: formats that several parts read
"""
