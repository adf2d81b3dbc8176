"""What `bench_airflow_logs` knows of a triggerer, which is another process: a trigger that also writes into a
file how late the event loop runs and how many requests have been made."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import TriggerEvent

from edl_workflows.airflow import triggers as elastic_job
from edl_workflows.runtime.kube.connect import ClusterSource, RequestRecord
from tests.benchmarks.bench_airflow_logs import PROBE_VARIABLE

SLEEP_SECONDS = 0.05

_requests: list[RequestRecord] = []
_probes: list[asyncio.Task[None]] = []
_plain_source = elastic_job._source


def _observed_source(connection: dict[str, Any]) -> ClusterSource:
    source = _plain_source(connection)
    return ClusterSource(source.key, lambda: source.connect().observed_by(_requests.append))


class ObservedTrigger(elastic_job.ElasticJobTrigger):
    """The trigger under measurement; the first of a process starts the probe."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """As the trigger itself."""
        elastic_job._source = _observed_source
        if not _probes:
            _probes.append(asyncio.create_task(_probe(Path(os.environ[PROBE_VARIABLE]))))
        async for event in super().run():
            yield event


async def _probe(file: Path) -> None:
    worst, second = 0.0, int(time.time())
    while True:
        begun = time.monotonic()
        await asyncio.sleep(SLEEP_SECONDS)
        worst = max(worst, time.monotonic() - begun - SLEEP_SECONDS)
        if int(time.time()) != second:
            line = {"time": time.time(), "late": worst, "requests": len(_requests), "process": os.getpid()}
            with file.open("a") as out:
                out.write(json.dumps(line) + "\n")
            worst, second = 0.0, int(time.time())
