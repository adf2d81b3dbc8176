"""A training program's log lines, as the how-to has them; run by `test_training_logs`."""

import logging
from types import SimpleNamespace

from edl_workflows.agent.environment import NodeEnvironment
from edl_workflows.agent.logs import json_lines

job = SimpleNamespace(environment=NodeEnvironment.read(), version=3)

logging.basicConfig(level=logging.INFO, handlers=[json_lines(job.environment, job.version)])

logging.getLogger("digits").info("epoch %d", 2)
