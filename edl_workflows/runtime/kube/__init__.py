"""The only code that uses the Kubernetes client.

Objects are plain dicts, as in manifests. The client's models are not used, since parsing a list of pods into
them takes longer than fetching it. `controller`, `master`, `stages` and the Airflow triggers use this layer,
and never get an exception of the client. Nothing here knows what a job is.

- `connect`: a `Cluster`, the handle that every call takes first; `proxies`: the proxy on the way to it
- `resources`: the kinds, and their paths in the API
- `client`: get, list, create, replace, patch, delete; `transport`: one request, with retries
- `logs`, `log_stream`, `events`: the output of pods, and the Events of an object
- `watch`, `informer`, `cache`: one LIST+WATCH with a cache; `informer_group`: several
- `shared`: one LIST+WATCH for all waiters of a process
- `errors`: converts the client's exceptions into ours; `forbidden`: advice for each cause of a 403
- `yaml_keys`: keys of maps in YAML, for the readers of manifests
"""
