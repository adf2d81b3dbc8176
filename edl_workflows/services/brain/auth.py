"""Tenants, identified by tokens. The tokens file contains only hashes of the tokens.

The file is JSON, so that it can be mounted from a Secret, and is read again when it changes::

    {"tokens": [{"tenant": "team-a", "namespaces": ["team-a"], "sha256": "<64 hex digits>"},
                {"tenant": "operators", "namespaces": ["*"], "sha256": "<64 hex digits>"}]}
"""

import hashlib
import hmac
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edl_workflows.core.exceptions import EdlError, ForbiddenError, InvalidError
from edl_workflows.core.protocol.brain import Namespace
from edl_workflows.core.protocol.message import describe_problems

log = structlog.get_logger(__name__)

EVERYTHING = "*"
"""In place of a namespace, marks an operator's token."""
LOOK_SECONDS = 1.0
"""Seconds between two checks for changes of the file."""


@dataclass(frozen=True)
class Tenant:
    """A caller.

    Attributes:
        name: name for people.
        namespaces: namespaces whose jobs it may read and write; None for all, which makes it an operator.
    """

    name: str
    namespaces: frozenset[str] | None = None

    def check(self, namespace: str) -> None:
        """Check that the tenant may write to a namespace.

        Raises:
            ForbiddenError: it may not.
        """
        if self.namespaces is not None and namespace not in self.namespaces:
            raise ForbiddenError(
                f"the token does not admit to namespace {namespace}: create one with `edl brain token`"
            )


ANYBODY = Tenant("anybody")
"""The caller if no tokens are required."""


class TokenRow(BaseModel):
    """One token.

    Attributes:
        tenant: its owner, who may have several, for example during a rotation.
        namespaces: see `Tenant`; ``["*"]`` for an operator.
        sha256: SHA-256 of the token in hexadecimal.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._]{0,61}[A-Za-z0-9])?$")]
    namespaces: Annotated[list[Namespace | Literal["*"]], Field(min_length=1, max_length=1000)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    def to_tenant(self) -> Tenant:
        everything = EVERYTHING in self.namespaces
        return Tenant(self.tenant, None if everything else frozenset(self.namespaces))


class TokenRows(BaseModel):
    """The contents of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    tokens: Annotated[list[TokenRow], Field(max_length=10_000)] = []


class TokenFile:
    """The tokens of a file, which is read again when it changes.

    Args:
        path: the file.
        clock: monotonic seconds.

    Raises:
        InvalidError: the file cannot be read.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._checked = clock()
        self._version = _version(path)
        self._tokens = read_tokens(path).tokens

    def tenant_of(self, token: str) -> Tenant | None:
        """The owner of a token; None if it is unknown."""
        self._reload_if_changed()
        digest, owner_row = token_digest(token), None
        for token_row in self._tokens:  # all rows, so that the duration reveals nothing
            if hmac.compare_digest(token_row.sha256, digest):
                owner_row = token_row
        return None if owner_row is None else owner_row.to_tenant()

    def _reload_if_changed(self) -> None:
        with self._lock:
            if self._clock() - self._checked < LOOK_SECONDS:
                return
            self._checked = self._clock()
            version = _version(self._path)
            if version == self._version:
                return
            try:
                self._tokens = read_tokens(self._path).tokens
            except EdlError as error:
                log.warning("tokens file not read; the previous tokens stay valid", error=str(error))
                return
            self._version = version
            log.info("tokens file read again", tokens=len(self._tokens))


def token_digest(token: str) -> str:
    """The hash of a token as it is in the file. Tokens are long and random, so a plain hash reveals
    nothing."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token(tenant: str, namespaces: list[str]) -> tuple[str, TokenRow]:
    """Create a token and its row for the file.

    Raises:
        InvalidError: a name is invalid.
    """
    token = secrets.token_urlsafe(32)
    try:
        token_row = TokenRow.model_validate(
            {"tenant": tenant, "namespaces": namespaces, "sha256": token_digest(token)}
        )
    except ValidationError as error:
        raise InvalidError("; ".join(describe_problems(error))) from error
    return token, token_row


def read_tokens(path: Path) -> TokenRows:
    """Read a tokens file.

    Raises:
        InvalidError: the file cannot be read, or is not valid.
    """
    try:
        return TokenRows.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidError(f"{path}: the tokens can't be read: {error.strerror}") from error
    except ValidationError as error:
        raise InvalidError(
            f"{path}: {describe_problems(error)[0]}; `edl brain token` writes such files"
        ) from error


def add_token(path: Path, token_row: TokenRow) -> None:
    """Add a row to a tokens file, which is created if absent. Only its owner may read it.

    Raises:
        InvalidError: the file cannot be read or written.
    """
    stored_tokens = read_tokens(path) if path.exists() else TokenRows()
    text = TokenRows(tokens=[*stored_tokens.tokens, token_row]).model_dump_json(indent=2) + "\n"
    fresh = path.with_name(path.name + ".new")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        raise InvalidError(f"{path}: can't be written: {error.strerror}") from error


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
