"""TFJobs for tests of their state machine."""

import json
from typing import Any

from tests.cases.kinds.tf_job import CASES, make_tf_job
from tests.unit.core.jobs.settled_job import SettledJob

NAME: str = CASES.example["metadata"]["name"]


class Job(SettledJob):
    """One TFJob; see `make_tf_job` for the arguments."""

    def __init__(self, spec: dict[str, Any] | None = None, **kwargs: Any) -> None:
        manifest = make_tf_job(**kwargs)
        manifest["spec"] |= spec or {}
        super().__init__(manifest)

    def config(self, short: str) -> dict[str, Any]:
        """A pod's TF_CONFIG."""
        env = {v["name"]: v["value"] for v in self.pod(short)["spec"]["containers"][0].get("env", ())}
        found: dict[str, Any] = json.loads(env["TF_CONFIG"])
        return found
