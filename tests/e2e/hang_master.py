"""A standalone master whose job takes training for hung after seconds, and restarts it. Arguments: state folder, port, token."""

import sys
from pathlib import Path

from edl_workflows.jobs.elastic_job.fault_tolerance import FaultTolerance, HangAction
from edl_workflows.master.server import Address, run_standalone
from edl_workflows.master.standalone import parse_nodes
from edl_workflows.master.state.settings import JobSettings
from tests.e2e.pods import JOB, NAMESPACE

HANG_SECONDS = 10

state, port, token = sys.argv[1:]
tolerance = FaultTolerance(hang_timeout_seconds=HANG_SECONDS, hang_action=HangAction.RESTART)
settings = JobSettings(JOB, NAMESPACE, parse_nodes("worker=1"), fault_tolerance=tolerance)
sys.exit(run_standalone(settings, Path(state), token, Address("127.0.0.1", int(port))))
