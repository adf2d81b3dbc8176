"""``edl run``: trains with a Python script, without a manifest."""

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl_workflows.core.exceptions import EdlError, InvalidError, JobDisappearedError, JobFailedError
from edl_workflows.core.jobs.elastic_job.adapters import Framework
from edl_workflows.pipelines.cli.jobs.job import Timeout, show_outputs
from edl_workflows.pipelines.cli.options import (
    ClusterFlags,
    LogFormat,
    Output,
    OutputFormat,
    configure_logs,
    expand_options,
)
from edl_workflows.pipelines.cli.output import print_log, say

if TYPE_CHECKING:
    from edl_workflows.core.jobs.elastic_job.from_program import ProgramOptions
    from edl_workflows.pipelines.client.places import Place
    from edl_workflows.pipelines.client.training import ElasticTraining
    from edl_workflows.pipelines.client.worker_logs import WorkerLogs
    from edl_workflows.pipelines.stages.driver import Observe
    from edl_workflows.pipelines.waiting.observed import ObservedObject
    from edl_workflows.pipelines.waiting.outputs import Outputs

app = typer.Typer(no_args_is_help=True)

REASON_LENGTH = 160
"""Most characters of an error in the line that says that the job is stopped; the whole error follows."""


class PlaceName(StrEnum):
    """Where the job runs."""

    LOCAL = "local"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class JobFlags:
    """The job that is made of the script."""

    workers: Annotated[int, typer.Option(help="Number of workers at the beginning.", min=1)] = 1
    max_workers: Annotated[
        int,
        typer.Option(
            help="Most workers that train together in a collective job; by default as many as at the "
            "beginning.",
            min=0,
            show_default=False,
        ),
    ] = 0
    servers: Annotated[int, typer.Option(help="Number of parameter servers.", min=0)] = 0
    framework: Annotated[
        Framework | None, typer.Option(help="By default the one that the script imports.", show_default=False)
    ] = None
    name: Annotated[str, typer.Option(help="Name of the job; by default made of that of the script.")] = ""
    image: Annotated[
        str, typer.Option(help="Image of the pods, with edl-workflows and what the script imports.")
    ] = ""
    checkpoints: Annotated[
        str,
        typer.Option(
            help="Folder or URI of checkpoints, which the script reads as job.checkpoint_dir. By default a "
            "folder of the embedded cluster."
        ),
    ] = ""
    cpu: Annotated[str, typer.Option(help="CPU of each node, such as 500m or 2.")] = ""
    memory: Annotated[str, typer.Option(help="Memory of each node, such as 4Gi.")] = ""
    gpus: Annotated[int, typer.Option(help="GPUs of each node (nvidia.com/gpu).", min=0)] = 0
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", help="NAME=VALUE for the script's environment. May be repeated."),
    ] = None
    template: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with a pod template: volumes, secrets, node selectors. Its first container runs "
            "the script.",
            show_default=False,
        ),
    ] = None

    def program_options(self, arguments: list[str]) -> "ProgramOptions":
        """How the script is run.

        Raises:
            InvalidError: an option is malformed.
        """
        from edl_workflows.core.jobs.elastic_job.from_program import ProgramOptions
        from edl_workflows.pipelines.manifests.manifest import parse_values

        template: Any = {}
        if self.template is not None:
            try:
                template = parse_values(self.template.read_text(encoding="utf-8"), str(self.template))
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidError(f"--template: can't read {self.template}: {error}") from error
        requests = {"cpu": self.cpu, "memory": self.memory}
        return ProgramOptions(
            workers=self.workers,
            max_workers=self.max_workers,
            servers=self.servers,
            framework=self.framework,
            arguments=tuple(arguments),
            image=self.image,
            checkpoints=_absolute(self.checkpoints),
            env=dict(map(_split_variable, self.env or ())),
            resources={name: amount for name, amount in requests.items() if amount},
            limits={"nvidia.com/gpu": str(self.gpus)} if self.gpus else {},
            template=template,
        )


def _absolute(place: str) -> str:
    """A folder as an absolute path; a URI unchanged."""
    return str(Path(place).absolute()) if place and "://" not in place else place


def _split_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidError(f"--env {text!r}: give a name and a value, such as RATE=0.1")
    return name, value


@app.command()
@expand_options
def run(
    script: Annotated[Path, typer.Argument(help="Python script with the training.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, after --.", show_default=False)
    ] = None,
    on: Annotated[
        PlaceName,
        typer.Option(
            help="local: the embedded cluster, which is started for the job if it does not run; cluster: the "
            "context of the kubeconfig. --kubeconfig and --context mean cluster.",
        ),
    ] = PlaceName.LOCAL,
    timeout: Timeout = None,
    *,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse a script whose workers would train separate copies of the model, and end the job if "
            "they do; fail if only the job's end shows it.",
        ),
    ] = False,
    job: JobFlags,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Train with a Python script, without a manifest. Prints the logs of the workers as they are written,
    waits until the job has ended, and exits with its result. Ctrl-C lets the chief save, and deletes the job.

    The script's text travels with the job, and so do the modules and packages of its folder that
    it imports.
    """
    from edl_workflows.pipelines.client.train import check_program, read_script, submit
    from edl_workflows.pipelines.stages.driver import observe_nothing

    program, options = read_script(script), job.program_options(arguments or [])
    check_program(program, options, say, strict=strict)
    with _ended_by_signals():
        place = _open(on, target)
        try:
            training = submit(place, program, options, hint=script.stem, name=job.name, notify=say)
            observe = refuse_copies if strict else observe_nothing
            outputs = _follow(training, timeout, observe, to_stderr=output is not OutputFormat.TABLE)
            show_outputs(outputs, output)
            if strict:
                refuse_copied_result(outputs)
        finally:
            place.close()


def _open(on: PlaceName, target: ClusterFlags) -> "Place":
    from edl_workflows.pipelines.client.places import open_place

    if on is PlaceName.CLUSTER or target.kubeconfig is not None or target.context is not None:
        return open_place(target.connect(), say)
    configure_logs(LogFormat.CONSOLE, verbose=False)
    return open_place("local", say).in_namespace(target.namespace)


def refuse_copies(seen: "ObservedObject") -> None:
    """With --strict: end the wait, and so the job, if its workers are found to train separate copies.

    Raises:
        InvalidError: they are.
    """
    from edl_workflows.core.jobs.view import JobView

    if isinstance(seen, JobView) and not seen.phase.final:
        _refuse_warnings(seen.warnings)


def refuse_copied_result(outputs: "Outputs") -> None:
    """With --strict: refuse the result of a job of which only the end showed that its workers trained
    separate copies.

    Raises:
        InvalidError: they did.
    """
    _refuse_warnings(outputs.warnings or ())


def _refuse_warnings(warnings: Iterable[str]) -> None:
    from edl_workflows.core.jobs.elastic_job.separate_copies import CONDITION, is_warning

    if warning := next(filter(is_warning, warnings), ""):
        raise InvalidError(f"{CONDITION}: {warning}")


def _follow(
    training: "ElasticTraining", timeout: float | None, observe: "Observe", *, to_stderr: bool
) -> "Outputs":
    """Print the workers' logs until the job has ended. Whatever else ends the wait cancels the job, unless
    somebody has deleted it: one of the same name is not ours."""
    from edl_workflows.pipelines.client.training import LAST_LINES_SECONDS

    logs = training.worker_logs()
    printer = threading.Thread(target=_print, args=(logs, to_stderr), name="log", daemon=True)
    with logs.following():
        printer.start()
        try:
            outputs = training.wait(timeout, observe=observe)
        except (JobFailedError, JobDisappearedError):
            raise
        except BaseException as error:
            reason = f": {shorten(str(error), REASON_LENGTH)}" if isinstance(error, EdlError) else ""
            say(f"stopping {training.handle}{reason}; the chief saves first (Ctrl-C again: delete at once)")
            if training.stop():
                say(f"{training.handle} is deleted")
            raise
        finally:
            logs.end(LAST_LINES_SECONDS)
            printer.join(LAST_LINES_SECONDS)
    return outputs


def _print(logs: "WorkerLogs", to_stderr: bool) -> None:
    for line in logs.lines():
        if to_stderr:
            say(line)
        else:
            print_log(f"{line}\n")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM raise SystemExit, so that the job is cancelled as by Ctrl-C."""

    def end(number: int, _frame: Any) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
