"""The only code that touches a Kubernetes client.

Objects are plain dicts as they stand in manifests; the client's models are not used, since reading a list of
pods into them takes longer than fetching it. Neighbours: `controller`, `master`, `stages` and the Airflow
triggers use this layer and never see an exception of the client. Nothing here knows what a job is.

- `connect`: a `Cluster`, the handle that every call takes first
- `resources`: which kinds there are and where the API serves them
- `client`: get, list, create, replace, patch, delete
- `logs`, `events`: what pods print, what happened to an object
- `watch`, `informer`: one LIST+WATCH with a cache
- `shared`: one LIST+WATCH for all waiters of a process
- `errors`: every exception of the client, as one of ours
"""
