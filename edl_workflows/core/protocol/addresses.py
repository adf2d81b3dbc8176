"""The variables and the map by which the embedded cluster replaces a pod network.

The embedded cluster has no pod network: each port of a Service or pod is mapped to a port of the machine. The
mapping is a JSON file, `{"<host>:<port>": "127.0.0.1:<host port>"}`, which is replaced as a whole when it
changes. `edl_workflows.training.addresses` reads both.
"""

SERVICE_MAP_VARIABLE = "EDL_SERVICE_MAP"
"""Path of the map."""
PORT_VARIABLE_PREFIX = "EDL_PORT_"
"""`EDL_PORT_<containerPort>`: the machine's port on which the container must listen instead."""
NAMESPACE_VARIABLE = "EDL_POD_NAMESPACE"

_ZONE = ".cluster.local"


def canonical_host(host: str, namespace: str) -> str:
    """A Service's name in the form used by the map, `name.namespace.svc`; an IP address is not changed.

    Args:
        host: `ps-0`, `ps-0.default`, `ps-0.default.svc` or `ps-0.default.svc.cluster.local`.
        namespace: namespace of the pod that uses the name, for a name without a namespace.
    """
    if host.replace(".", "").isdigit():
        return host
    host = host.lower().removesuffix(".").removesuffix(_ZONE).removesuffix(".svc")
    return f"{host}.svc" if "." in host else f"{host}.{namespace}.svc"
