"""Ports of the machine that a cluster takes for its pods."""

import contextlib
import socket

from edl_workflows.local.network.host_ports import HostPorts

SEED = 20_261


def test_a_port_taken_at_another_address_is_not_given_out() -> None:
    """A server of a pod that asks for all interfaces could not have a port on which somebody listens at any
    of them."""
    with contextlib.closing(HostPorts(SEED)) as ports:
        port = ports.allocate(frozenset())
        assert ports.allocate(frozenset()) == port
        with socket.create_server(("127.0.0.2", port)):
            assert ports.allocate(frozenset()) != port
