"""Serves the files of the web page without a token. The page sends requests to the API with the token that
the user enters."""

from importlib import resources

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # Allows only files of this server, and no inline scripts or styles.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Serve the page at ``/``, and its other files."""
    folder = resources.files("edl_workflows.services.brain.page") / "files"
    for file in folder.iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            _add_file(app, path, file.read_bytes(), _TYPES[suffix])


def _add_file(app: FastAPI, path: str, body: bytes, media_type: str) -> None:
    async def answer(_request: Request) -> Response:
        return Response(body, headers=_HEADERS, media_type=media_type)

    app.add_route(path, answer, methods=["GET"], include_in_schema=False)
