"""Addresses in text."""

import pytest

from edl_workflows.local.network.rewrite import rewrite_addresses

KNOWN = {
    ("ps-0.default.svc", 2222): "127.0.0.1:31000",
    ("ps-1.default.svc", 2222): "127.0.0.1:31001",
    ("web.other.svc", 80): "127.0.0.1:31002",
    ("127.64.0.1", 2222): "127.0.0.1:31003",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ps-0:2222", "127.0.0.1:31000"),
        ("ps-0.default:2222", "127.0.0.1:31000"),
        ("ps-0.default.svc:2222", "127.0.0.1:31000"),
        ("ps-0.default.svc.cluster.local:2222", "127.0.0.1:31000"),
        ("--ps_hosts=ps-0:2222,ps-1:2222", "--ps_hosts=127.0.0.1:31000,127.0.0.1:31001"),
        ('{"ps": ["ps-0.default.svc:2222"]}', '{"ps": ["127.0.0.1:31000"]}'),
        ("http://web.other.svc:80/a?b=c:d", "http://127.0.0.1:31002/a?b=c:d"),
        ("grpc://user@ps-0:2222", "grpc://user@127.0.0.1:31000"),
        ("127.64.0.1:2222", "127.0.0.1:31003"),
        ("web:80", "web:80"),
        ("ps-0:22222", "ps-0:22222"),
        ("xps-0:2222", "xps-0:2222"),
        ("a.ps-0:2222", "a.ps-0:2222"),
        ("redis:7", "redis:7"),
        ("12:30:45", "12:30:45"),
        ("ps-0:99999", "ps-0:99999"),
        ("", ""),
    ],
)
def test_addresses_in_text(text: str, expected: str) -> None:
    """Known addresses are replaced in every spelling and surrounding; everything else stays as it is."""
    assert (
        rewrite_addresses(text, "default", lambda host, port, _explicit: KNOWN.get((host, port))) == expected
    )


def test_explicit_service_names_are_told_apart() -> None:
    """Only names with .svc are known to be Services even if none exists yet."""
    seen: list[tuple[str, bool]] = []

    def lookup(host: str, port: int, explicit: bool) -> None:
        seen.append((host, explicit))

    rewrite_addresses("a:1 b.default.svc:1 c.default.svc.cluster.local:1", "default", lookup)

    assert seen == [("a.default.svc", False), ("b.default.svc", True), ("c.default.svc", True)]
