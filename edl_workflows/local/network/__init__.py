"""Replaces a pod network: each port of a pod is a port of the machine, and addresses are rewritten
accordingly. `service_proxy` is the API server's way to them."""
