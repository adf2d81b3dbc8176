"""Ports of the machine that a cluster takes for its pods."""

import contextlib
import socket

from edl_workflows.local.network.host_ports import HostPorts

SEED = 20_261


def test_a_port_taken_at_another_address_is_not_given_out() -> None:
    """A port on which somebody listens at any address is not assigned, since a server in a pod may ask for
    all interfaces."""
    with contextlib.closing(HostPorts(SEED)) as ports:
        port = ports.allocate(frozenset())
        assert ports.allocate(frozenset()) == port
        with socket.create_server(("127.0.0.2", port)):
            assert ports.allocate(frozenset()) != port
