"""An API server that speaks HTTP/2 and sends watch events when a test says so."""

import json
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
from kubernetes.client import ApiClient, Configuration

from edl_workflows.local.apiserver.serving import ensure_certificates
from edl_workflows.runtime.kube.connect import Cluster


@dataclass(eq=False)
class Connection:
    """A client's connection, and the streams of its watches by the path that each requested."""

    socket: ssl.SSLSocket
    state: h2.connection.H2Connection
    streams: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def flush(self) -> None:
        """Send what the protocol has to send; the lock is held."""
        self.socket.sendall(self.state.data_to_send())


class Http2Api:
    """The server.

    Args:
        folder: for its certificate.
    """

    def __init__(self, folder: Path) -> None:
        self.connections: list[Connection] = []
        """All that were opened, the newest last."""
        self.tokens: list[str] = []
        self.refusal: dict[str, Any] | None = None
        """A status with which all requests are refused; None: watches are opened."""
        files = ensure_certificates(folder)
        self._authority = files.authority
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(files.certificate, files.key)
        self._tls.set_alpn_protocols(["h2"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cluster(self) -> Cluster:
        """A handle with a token, as of a service account."""
        configuration = Configuration(host=f"https://127.0.0.1:{self._listener.getsockname()[1]}")
        configuration.ssl_ca_cert = str(self._authority)
        configuration.api_key["authorization"] = "Bearer secret"
        return Cluster.from_api_client(ApiClient(configuration), "ns")

    def send(self, path: str, event: dict[str, Any]) -> None:
        """Send an event to the newest watch of a path."""
        connection = next(one for one in reversed(self.connections) if path in one.streams)
        with connection.lock:
            connection.state.send_data(connection.streams[path], json.dumps(event).encode() + b"\n")
            connection.flush()

    def go_away(self) -> None:
        """End the newest connection as an API server does that spreads its clients anew."""
        connection = self.connections[-1]
        with connection.lock:
            connection.state.close_connection()
            connection.flush()
            connection.socket.close()

    def close(self) -> None:
        """End all."""
        for one in (self._listener, *(connection.socket for connection in self.connections)):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(plain,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError):
            secured = self._tls.wrap_socket(plain, server_side=True)
            state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
            connection = Connection(secured, state)
            state.initiate_connection()
            connection.flush()
            self.connections.append(connection)
            while arrived := secured.recv(65536):
                with connection.lock:
                    for event in state.receive_data(arrived):
                        if isinstance(event, h2.events.RequestReceived):
                            self._answer(connection, event)
                    connection.flush()

    def _answer(self, connection: Connection, request: h2.events.RequestReceived) -> None:
        headers = {name.decode(): text.decode() for name, text in request.headers}
        self.tokens.append(headers.get("authorization", ""))
        code = "200" if self.refusal is None else str(self.refusal["code"])
        connection.state.send_headers(request.stream_id, [(":status", code)])
        if self.refusal is not None:
            body = json.dumps(self.refusal).encode()
            connection.state.send_data(request.stream_id, body, end_stream=True)
        connection.streams[headers[":path"].partition("?")[0]] = request.stream_id
