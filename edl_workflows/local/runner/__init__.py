"""What kubelet is elsewhere: a pod's containers as processes of this machine, their probes, logs, volumes and
status.

From the bottom to the top:

- `shim`         the small process above each container: mounts, starts, forwards signals, reaps, records the
  end
- `listening`    keeps a container's servers on the loopback interface
- `attempts`     one start of one container on disk, and its shim as seen from the cluster process
- `processes`    whose processes live: found by ancestry and by mark, so that none is leaked
- `memory`       limits by resident memory
- `log_files`    a container's output on disk, in files of bounded size
- `logs`         the output of containers
- `support`      what of a pod the runner can't honour
- `environment`  variables, arguments, addresses
- `volumes`      sources and mounts
- `probes`       checks and their thresholds
- `lifecycle`    pure: pod and container states → what to do now
- `status`       pure: pod and container states → ``status``
- `pod_worker`   one pod's loop
- `runner`       all pods
"""
