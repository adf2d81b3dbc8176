"""A training program that logs as the how-to page shows; `test_training_logs` runs it."""

import logging
from types import SimpleNamespace

from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.logs import json_lines

job = SimpleNamespace(environment=NodeEnvironment.read(), version=3)

logging.basicConfig(level=logging.INFO, handlers=[json_lines(job.environment, job.version)])

logging.getLogger("digits").info("epoch %d", 2)
