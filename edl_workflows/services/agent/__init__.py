"""The agent of a training pod (``edl agent run``), which runs beside the training program. Base install only.

- `command`: the command line
- `supervisor`: runs the training processes that the master's directive asks for; `process_choice` decides,
  `processes` starts and ends them, `output_lines` cuts their output into lines, `process_tree` measures them
- `group_connections`: whether a program meets those of other nodes, or each worker trains its own copy
- `local_group`: runs an unmodified ``torchrun`` script as a group of processes
- `agent_checkpoints`: persists the copies of the model that training leaves in shared memory (`persisting`),
  and keeps copies on other nodes (`peers`, `peer_server`)
- `node_check`, `torch_check`: measure a machine and its network before training

The library that training programs import is `edl_workflows.training`. The agent imports it, never the other
way round.
"""
