"""The kubelet's part: runs the containers of pods as processes of this machine, with probes, logs, volumes
and status.

- `shim`: the small process above each container; `listening`: keeps a container's servers on the loopback
  interface
- `attempts`: one start of a container on disk, and its shim as seen from the cluster process
- `processes`: finds processes by ancestry and mark, so that none is leaked, and measures their memory
- `log_files`: a container's output on disk, in files of bounded size; `logs`: reads it
- `support`: what the runner does not support in a pod
- `environment`: variables and arguments; `launches`: all that a container is started with
- `volumes`: sources and mounts
- `probes`: checks and their thresholds; `containers`: one container over all its starts
- `lifecycle`: pure: pod and container states → what to do now
- `status`: pure: pod and container states → ``status``
- `pod_worker`: one pod's loop; `runner`: all pods
"""
