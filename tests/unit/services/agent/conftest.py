"""The fake master and the pod's environment of the library's tests."""

from tests.unit.training.conftest import connected, environment, master, pod_env

__all__ = ["connected", "environment", "master", "pod_env"]
