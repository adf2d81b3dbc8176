"""Checkpoints: made in two stages, stored in a folder or an object store, verified before use.

- `saving` decides when the chief saves; `two_stages` copies the state to shared memory (`snapshots`,
  `slot_memory`), from which the agent persists it; `copying`: what a copy beside training needs
- `checkpoints` stores in a folder, `remote_store` in an object store; `manifest` describes and verifies the
  files
- `checkpoint_parts`, `part_saving`, `tensor_parts`: checkpoints that several processes save together
- `tensors`: a model's state as one block of bytes
- `restoring` finds and loads the checkpoint from which a process starts
"""
