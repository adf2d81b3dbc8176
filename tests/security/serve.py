"""Servers that have no command of their own: ``python -m tests.security.serve plugin|peers FOLDER PORT
TOKEN``.

Each serves on 127.0.0.1 until it is killed.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from edl_workflows.pipelines.argo.executor_plugin import create_app
from edl_workflows.runtime.process import http
from edl_workflows.services.agent.peer_server import PeerServer
from edl_workflows.training.checkpoints.snapshots import SnapshotFolder


def plugin(_folder: Path, port: int, token: str) -> contextlib.AbstractContextManager[object]:
    """Argo's executor plugin; without the agent beside it, which only asks the API server."""
    return http.serve_in_thread(
        create_app(lambda: token), http.ListenOptions("127.0.0.1", port), "plugin server"
    )


@contextlib.contextmanager
def peers(folder: Path, port: int, token: str) -> Iterator[object]:
    """An agent's server of copies of the model; there are none yet."""
    server = PeerServer(SnapshotFolder(folder), ("127.0.0.1", port), token)
    server.start()
    yield server
    server.close()


SERVERS: dict[str, Callable[[Path, int, str], contextlib.AbstractContextManager[object]]] = {
    "plugin": plugin,
    "peers": peers,
}

if __name__ == "__main__":
    _, name, folder_name, port_text, secret = sys.argv
    with SERVERS[name](Path(folder_name), int(port_text), secret):
        threading.Event().wait()
