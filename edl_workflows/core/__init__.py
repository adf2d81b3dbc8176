"""Values and rules: the job kinds, the scaling algorithms, the messages between parts, the errors.

No I/O, clock, environment or logger here: values in, values out. An import contract forbids their modules.

- `jobs`: the job kinds, a folder a kind
- `scaling`: how many replicas each job gets, and on which nodes
- `protocol`: messages between a job's master, its agents and the Brain
- `schemas`: CustomResourceDefinitions, their structural schemas and CEL rules
- `kubernetes`: Kubernetes objects as values: resource types, metadata, quantities, names
- `exceptions`: the one tree of errors; `backoff`: the pauses between attempts; `write_budget`: the
  pauses between the writes of many
- `partitions`: which replica of a controller owns a job
"""
