"""Connects a training program to its job."""

import atexit
import os
import signal

from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment, cluster_version
from edl_workflows.training.job import Job
from edl_workflows.training.signals import call_on_signals, die_with_parent, dump_stacks_on_signal


def connect() -> Job:
    """Connect to the job's master, whose address the agent provides in the environment.

    Call it early, in the main thread. From then on, SIGTERM makes the process save, return its leases and
    exit at the next step boundary, and the process exits when its agent does. On SIGUSR2 the process writes
    the stacks of its threads to stderr; the agent sends that signal when training hangs.

    Raises:
        InvalidError: the program was not started by ``edl agent run``; the message names the missing
            variable.
    """
    environment = NodeEnvironment.read()
    version = cluster_version(os.environ)
    die_with_parent()
    dump_stacks_on_signal()
    job = Job(environment, version, MasterClient(environment.master, environment.token))
    call_on_signals((signal.SIGTERM,), job.terminate)
    atexit.register(job.close)
    return job
