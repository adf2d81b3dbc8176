"""``python -m tests.unit.services.controller.audited_api_server DIRECTORY PORT USERS``: the embedded API
server with an administrator for each user, whose token is the user's name, and a log of the writes.

Each line of ``DIRECTORY/audit.jsonl`` is a write that succeeded, in the order of their ends: the time in
seconds, the user, the method, the path and the request's body.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edl_workflows.local.apiserver.app import build_app
from edl_workflows.local.apiserver.server import open_server
from edl_workflows.local.apiserver.serving import ApiHttpServer, prepare_access


class Audit:
    """The application, with a log.

    Args:
        app: the application.
        log: the file.
    """

    def __init__(self, app: ASGIApp, log: Path) -> None:
        self._app = app
        self._log = log.open("a")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()

        async def receive_and_keep() -> Message:
            message = await receive()
            body.extend(message.get("body") or b"")
            return message

        async def log_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300:
                self._write(scope, bytes(body))
            await send(message)

        if scope["type"] != "http" or scope["method"] == "GET":
            await self._app(scope, receive, send)
        else:
            await self._app(scope, receive_and_keep, log_and_send)

    def _write(self, scope: Scope, body: bytes) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        user = headers[b"authorization"].decode().removeprefix("Bearer ")
        line: list[Any] = [time.monotonic(), user, scope["method"], scope["path"], json.loads(body or b"{}")]
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()


def main() -> None:
    """Serve until SIGTERM."""
    folder, port, users = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    access = prepare_access(folder, port)
    server = open_server(folder, {access.token: "admin"} | {user: user for user in users})
    app: Any = Audit(build_app(server), folder / "audit.jsonl")
    asyncio.run(ApiHttpServer(app, access, port, server.registry.store).serve())


if __name__ == "__main__":
    main()
