"""Runs the API server alone: ``python -m edl_workflows.local.apiserver --dir D --port P``.

It writes ``D/kubeconfig``, then listens. Pods stay Pending, because no component schedules or runs them.
"""

import argparse
import asyncio
import signal
from pathlib import Path

from edl_workflows.local.apiserver.app import build_app
from edl_workflows.local.apiserver.server import open_server
from edl_workflows.local.apiserver.serving import ApiHttpServer, prepare_access


def main() -> None:
    parser = argparse.ArgumentParser(prog="edl_workflows.local.apiserver", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="state, certificates and kubeconfig")
    parser.add_argument("--port", type=int, default=6443, help="port on 127.0.0.1")
    parser.add_argument("--history", type=int, default=10_000, help="changes kept per resource for watches")
    options = parser.parse_args()
    access = prepare_access(options.dir, options.port)
    server = open_server(options.dir, {access.token: "admin"}, history=options.history)
    http = ApiHttpServer(build_app(server), access, options.port, server.registry.store)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, http.handle_exit)
    asyncio.run(http.serve())
    server.close()


if __name__ == "__main__":
    main()
