"""``edl agent run -- CMD…``: the entry point of a training pod. Needs the base install only."""

import argparse
import logging
import signal
import sys
from collections.abc import Sequence

from edl_workflows.core.exceptions import EdlError
from edl_workflows.services.agent.local_group import group_command
from edl_workflows.services.agent.supervisor import AgentSettings, Supervisor
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.logs import json_lines
from edl_workflows.training.program import INVALID
from edl_workflows.training.signals import call_on_signals


def main(argv: Sequence[str]) -> int:
    """Run the command line.

    Args:
        argv: arguments after ``edl agent``.

    Returns:
        The exit code.
    """
    arguments = _parser().parse_args(argv)
    level = logging.DEBUG if arguments.verbose else logging.INFO
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s edl-agent %(levelname)s %(message)s"
    )
    logging.getLogger("urllib3").setLevel(logging.INFO)  # a line for each call to the master
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        _parser().error("no command given: write the training program after --")
    try:
        environment = NodeEnvironment.read()
        if arguments.nproc_per_node:
            command = group_command(arguments.nproc_per_node, command)
        settings = AgentSettings(command=command, checkpoint_grace=arguments.checkpoint_grace)
        return _supervise(environment, settings, as_json=_as_json(arguments.log_format))
    except EdlError as error:
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - a user's mistake needs no traceback
        return INVALID


def _as_json(log_format: str) -> bool:
    return log_format == "json" or (log_format == "auto" and not sys.stderr.isatty())


def _supervise(environment: NodeEnvironment, settings: AgentSettings, *, as_json: bool) -> int:
    with MasterClient(environment.master, environment.token) as client:
        supervisor = Supervisor(environment, client, settings)
        if as_json:
            handler = json_lines(environment, lambda: supervisor.version)
            logging.basicConfig(level=logging.root.level, handlers=[handler], force=True)
        call_on_signals((signal.SIGTERM, signal.SIGINT), supervisor.terminate)
        return supervisor.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="edl agent", description="The agent in a training pod.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run the training program under the control of the job's master",
        description="Runs the training program under the control of the job's master: one process for the "
        "active cluster version, and one prepared for the next. The pod's environment gives the master's "
        "address. If the command is a shell script, let it `exec` the program: SIGTERM ends the script, and "
        "when the script ends, so do all processes that it started.",
    )
    run.add_argument(
        "--checkpoint-grace",
        type=_seconds,
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL, in which the chief saves a checkpoint (default: three times "
        "as long as the slowest of the newest saves took, and at least 25)",
    )
    run.add_argument(
        "--nproc-per-node",
        default="",
        metavar="N",
        help="run a script for torchrun, in N processes with torchrun's variables; N may be auto, gpu or cpu",
    )
    run.add_argument(
        "--log-format",
        choices=("auto", "console", "json"),
        default="auto",
        help="format of the agent's own log; auto: console on a terminal, else JSON",
    )
    run.add_argument("--verbose", action="store_true", help="log more on stderr")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the training program")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text}: must be from 0 to 86400 seconds")
    return value
