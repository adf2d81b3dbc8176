"""Whom NetworkPolicies let in, as a network plugin that enforces them decides it."""

from collections.abc import Iterable, Mapping
from typing import Any

Object = Mapping[str, Any]


def admits(policies: Iterable[Object], source: Object, target: Object, port: int) -> bool:
    """Whether a pod may connect to a port of another one.

    As the API's documentation has it: a pod that no policy for Ingress selects takes everything; one that any
    selects takes what at least one of them admits. Peers are pods, by labels (``matchLabels`` only) and by
    the name of their namespace.
    """
    selecting = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == target["metadata"]["namespace"]
        and "Ingress" in policy["spec"]["policyTypes"]
        and _selects(policy["spec"]["podSelector"], target)
    ]
    if not selecting:
        return True
    return any(
        _rule_admits(rule, policy["metadata"]["namespace"], source, port)
        for policy in selecting
        for rule in policy["spec"].get("ingress", ())
    )


def _rule_admits(rule: Object, namespace: str, source: Object, port: int) -> bool:
    ports = [one["port"] for one in rule.get("ports", ())]
    peers = rule.get("from", ())
    return (not ports or port in ports) and (
        not peers or any(_is_peer(peer, namespace, source) for peer in peers)
    )


def _is_peer(peer: Object, namespace: str, source: Object) -> bool:
    assert peer.keys() <= {"podSelector", "namespaceSelector"}, f"not evaluated: {peer}"
    if "namespaceSelector" in peer:
        names = {"labels": {"kubernetes.io/metadata.name": source["metadata"]["namespace"]}}
        if not _selects(peer["namespaceSelector"], {"metadata": names}):
            return False
    elif source["metadata"]["namespace"] != namespace:
        return False
    return _selects(peer.get("podSelector", {}), source)


def _selects(selector: Object, pod: Object) -> bool:
    assert selector.keys() <= {"matchLabels"}, f"not evaluated: {selector}"
    wanted = selector.get("matchLabels", {})
    return bool(wanted.items() <= pod["metadata"].get("labels", {}).items())
