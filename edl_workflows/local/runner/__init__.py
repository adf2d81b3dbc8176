"""Runs the containers of pods as processes of this machine, with probes, logs, volumes and status, as kubelet
does on a node.

- `shim`: the small parent process of each container; `listening`: restricts a container's servers to the
  loopback interface
- `attempts`: one start of a container: its files on disk and its shim
- `processes`: finds processes by ancestry and mark, so that none is left behind, and measures their memory
- `log_files`: writes a container's output to files of bounded size; `logs`: reads them
- `support`: what the runner does not support in a pod
- `environment`: a container's variables and arguments; `launches`: everything that a container is started
  with
- `volumes`: sources and mounts
- `probes`: probes and their thresholds; `containers`: one container with all its starts
- `lifecycle`: a pure function from the pod and its containers' states to the next actions
- `status`: a pure function from the pod and its containers' states to ``status``
- `pod_worker`: the loop of one pod; `runner`: all pods
"""
