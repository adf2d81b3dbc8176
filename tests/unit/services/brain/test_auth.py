"""Tokens: the content of the file, when it is read, and which requests are admitted."""

import json
import stat
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import ForbiddenError, InvalidError
from edl_workflows.services.brain import auth
from edl_workflows.services.brain.auth import Tenant, TokenFile


def test_a_made_token_lets_in(tmp_path: Path) -> None:
    """A created token admits its tenant to its namespaces. The file contains only a hash, and only its owner
    may read it."""
    file = tmp_path / "tokens.json"
    token, row = auth.new_token("team-a", ["a", "b"])
    auth.add_token(file, row)
    operator, second = auth.new_token("ops", ["*"])
    auth.add_token(file, second)

    tokens = TokenFile(file)
    assert tokens.tenant_of(token) == Tenant("team-a", frozenset({"a", "b"}))
    assert tokens.tenant_of(operator) == Tenant("ops", None)
    assert tokens.tenant_of(token[:-1]) is None
    assert tokens.tenant_of("") is None
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(token) >= 40


def test_a_tenant_writes_to_its_namespaces() -> None:
    """A tenant may write to its own namespaces, and an operator to all."""
    Tenant("team-a", frozenset({"a"})).check("a")
    Tenant("ops").check("a")
    with pytest.raises(ForbiddenError, match="namespace b"):
        Tenant("team-a", frozenset({"a"})).check("b")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """New tokens become valid and removed ones invalid without a restart; a broken file changes nothing."""
    file, now = tmp_path / "tokens.json", [0.0]
    first, row = auth.new_token("team-a", ["a"])
    auth.add_token(file, row)
    tokens = TokenFile(file, clock=lambda: now[0])
    second, other = auth.new_token("team-b", ["b"])

    auth.add_token(file, other)
    now[0] += auth.LOOK_SECONDS
    assert tokens.tenant_of(second) is not None
    for broken in ("{", ""):
        file.write_text(broken)
        now[0] += auth.LOOK_SECONDS
        assert tokens.tenant_of(first) is not None
    file.unlink()
    now[0] += auth.LOOK_SECONDS
    assert tokens.tenant_of(first) is not None
    auth.add_token(file, other)
    now[0] += auth.LOOK_SECONDS
    assert tokens.tenant_of(first) is None
    assert tokens.tenant_of(second) is not None


WRONG_FILES = {
    "no JSON": "{",
    "a list": "[]",
    "a token itself": json.dumps({"tokens": [{"tenant": "a", "namespaces": ["a"], "token": "secret"}]}),
    "no namespace": json.dumps({"tokens": [{"tenant": "a", "namespaces": [], "sha256": "0" * 64}]}),
    "no hash": json.dumps({"tokens": [{"tenant": "a", "namespaces": ["a"], "sha256": "0"}]}),
    "a path as namespace": json.dumps(
        {"tokens": [{"tenant": "a", "namespaces": ["../a"], "sha256": "0" * 64}]}
    ),
}


@pytest.mark.parametrize("text", WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    """A malformed file of tokens ends the server at its start, with the error."""
    file = tmp_path / "tokens.json"
    file.write_text(text)
    with pytest.raises(InvalidError, match=r"tokens\.json"):
        TokenFile(file)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(InvalidError, match="nothing-there"):
        TokenFile(tmp_path / "nothing-there")


def test_a_wrong_name_makes_no_token() -> None:
    """A name that is not valid for a tenant or a namespace is refused before a token is made."""
    for tenant, namespace in (("team a", "a"), ("a", "A"), ("", "a")):
        with pytest.raises(InvalidError):
            auth.new_token(tenant, [namespace])
