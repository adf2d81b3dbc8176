"""Serves the API server alone: ``python -m edl_workflows.local.apiserver --dir D --port P``.

Writes ``D/kubeconfig`` before it listens. Pods stay pending: nothing schedules or runs them.
"""

import argparse
import secrets
from pathlib import Path

import uvicorn
import yaml

from edl_workflows.local.apiserver.app import build_app
from edl_workflows.local.apiserver.server import open_server


def kubeconfig(url: str, token: str) -> str:
    """A kubeconfig with one cluster, user and context."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "edl-local", "cluster": {"server": url}}],
            "users": [{"name": "edl-local", "user": {"token": token}}],
            "contexts": [
                {
                    "name": "edl-local",
                    "context": {"cluster": "edl-local", "user": "edl-local", "namespace": "default"},
                }
            ],
            "current-context": "edl-local",
        }
    )


def main() -> None:
    """Parse the arguments and serve until a signal."""
    parser = argparse.ArgumentParser(prog="edl_workflows.local.apiserver", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="state and kubeconfig")
    parser.add_argument("--port", type=int, default=6443, help="port on 127.0.0.1")
    parser.add_argument("--history", type=int, default=10_000, help="changes kept per resource for watches")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    token_file = options.dir / "admin-token"
    if not token_file.exists():
        token_file.touch(0o600)
        token_file.write_text(secrets.token_urlsafe(32))
    token = token_file.read_text()
    config_file = options.dir / "kubeconfig"
    config_file.touch(0o600)
    config_file.write_text(kubeconfig(f"http://127.0.0.1:{options.port}", token))
    server = open_server(options.dir, {token: "admin"}, history=options.history)
    uvicorn.run(
        build_app(server),
        host="127.0.0.1",
        port=options.port,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    server.close()


if __name__ == "__main__":
    main()
