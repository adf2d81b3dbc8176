"""The substitute for a pod network: each port of a pod is a port of the machine, and addresses are rewritten
to it."""
