"""What to do about a request that the API server forbids (403): it answers so if a right is missing, and also
if admission refuses the object, for instance because of a quota.

Only the server's message tells the causes apart.
"""

import re

_UNKNOWN = "change what the server names; or, if that is a missing right, ask for a Role that allows it"
_ADVICE = (
    (
        r'User "system:anonymous" cannot ',
        "no credentials reached the server: check the kubeconfig's user, or log in again",
    ),
    (
        r"\bforbidden: User \"[^\"]*\" cannot |cannot set blockOwnerDeletion",
        "ask for a Role that allows it",
    ),
    (
        r"attempting to grant RBAC permissions",
        "an account can give only rights that it has: ask somebody who has them",
    ),
    (
        r"exceeded quota: |insufficient quota ",
        "wait until others release their part, request less, or ask for a larger ResourceQuota",
    ),
    (
        r"failed quota: ",
        "set what the ResourceQuota counts (requests, limits) in resources of the pod template's containers",
    ),
    (
        r"no PriorityClass with name ",
        "name a PriorityClass that exists (`kubectl get priorityclasses`), or remove priorityClassName",
    ),
    (
        r"error looking up service account ",
        "create the ServiceAccount in this namespace, or name an existing one in serviceAccountName",
    ),
    (r"RuntimeClass \S+ not found", "name a RuntimeClass that exists, or remove runtimeClassName"),
    (
        r"violates PodSecurity ",
        "set in the pod template's securityContext what the message names, or relax the namespace's level",
    ),
    (
        r"(?:maximum|minimum) \S+ usage per |limit to request ratio per ",
        "change resources in the pod template to what the namespace's LimitRange allows",
    ),
    (
        r"because it is being terminated",
        "the namespace is being deleted: use another, or create it again",
    ),
    (
        r"denied (?:the )?request",
        "a policy of the cluster refuses it: change what the message names, or ask who manages the policy",
    ),
)
"""Patterns in the server's message, each with the advice. The first that matches counts."""


def advise_forbidden(message: str) -> str:
    """What to do about a 403 with this message of the server."""
    return next((advice for pattern, advice in _ADVICE if re.search(pattern, message)), _UNKNOWN)
