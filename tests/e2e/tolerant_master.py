"""A standalone master whose job says something of fault tolerance. Arguments: state folder, port, token,
nodes as ``worker=1``, and the fields of ``spec.faultTolerance`` as JSON."""

import sys
from pathlib import Path

from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance
from edl_workflows.services.master.server import ListenAddress, run_standalone
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.settings import JobSettings
from tests.e2e.pods import JOB, NAMESPACE

state, port, token, nodes, said = sys.argv[1:]
tolerance = FaultTolerance.model_validate_json(said)
settings = JobSettings(JOB, NAMESPACE, parse_nodes(nodes), fault_tolerance=tolerance)
sys.exit(run_standalone(settings, Path(state), token, ListenAddress("127.0.0.1", int(port))))
