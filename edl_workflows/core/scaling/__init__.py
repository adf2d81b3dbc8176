"""Which job gets how many replicas, and on which nodes: pure algorithms, a folder for each upstream system.

- `policy`: the contract of allocation policies; `policies`: their registry; `first_fit`: the default policy.
- `paddle`: Paddle EDL's fulfilment algorithm, which sizes the elastic jobs of a cluster.
- `dlrover`: DLRover's optimizers, which advise the nodes of one job, and the Brain's algorithms.
- `pollux`: Pollux, which allocates by the goodput that jobs report.
- `portable_math`: floating-point functions with the same result on every machine.

Nothing here talks to a cluster, reads a clock, or knows the kinds of jobs.
`edl_workflows.services.controller`, `edl_workflows.services.master` and `edl_workflows.services.brain`
observe, call these algorithms, and carry out what they return.
"""
