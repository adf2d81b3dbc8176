"""Submits a Python script or function as an elastic training."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job.adapters import Framework
from edl_workflows.core.jobs.elastic_job.from_program import ProgramOptions, imported_modules, render_job
from edl_workflows.core.jobs.elastic_job.program import MAX_BYTES, MAX_FILES, TrainingProgram
from edl_workflows.core.jobs.elastic_job.separate_copies import CONDITION, find_copies
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.client.places import On, Place, open_place
from edl_workflows.pipelines.client.training import ElasticTraining
from edl_workflows.pipelines.manifests.travelling import function_program
from edl_workflows.pipelines.stages.submit import SUBMIT, SubmitRequest
from edl_workflows.pipelines.waiting.identity import Notify, StageIdentity, notify_nobody
from edl_workflows.runtime.kube.connect import Cluster

_OWN_PACKAGE = "edl_workflows"
"""Pods have it."""


def train(
    program: Callable[..., Any] | str | Path,
    arguments: Mapping[str, Any] | list[str] | tuple[str, ...] = (),
    *,
    workers: int = 1,
    framework: str | None = None,
    on: On | Cluster = "local",
    notify: Notify = notify_nobody,
    strict: bool = False,
    **options: Any,
) -> ElasticTraining:
    """Submit an elastic training and return at once.

    Args:
        program: a function, or the path of a Python script. A function is called in each worker; it must
            import inside its body what it uses.
        arguments: of a function: JSON values by name; of a script: its command-line arguments.
        workers: number of workers at the beginning.
        framework: ``numpy``, ``torch`` or ``tensorflow``; None: that which the program imports.
        on: ``local``, the embedded cluster; ``cluster``, the current context of the kubeconfig; or a
            connected cluster.
        notify: called with lines about the job.
        strict: refuse a program whose workers would train separate copies of the model.
        options: further fields of `edl_workflows.core.jobs.elastic_job.from_program.ProgramOptions`, such as
            ``image``, ``servers``, ``max_workers``, ``checkpoints`` or ``template``.

    Raises:
        InvalidError: the program, its arguments or the options are invalid; nothing was created.
        UnavailableError: the cluster can't be reached.
    """
    try:
        chosen = Framework(framework) if framework is not None else None
        program_options = ProgramOptions(workers=workers, framework=chosen, **options)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"train: {error}") from error
    if callable(program):
        values = arguments or {}
        if not isinstance(values, Mapping):
            raise InvalidError("the arguments of a function are a mapping: JSON values by name")
        travelling, hint = function_program(program, values), program.__name__
    else:
        if isinstance(arguments, Mapping):
            raise InvalidError("the arguments of a script are a list of strings, as on a command line")
        travelling, hint = read_script(Path(program)), Path(program).stem
        program_options = replace(program_options, arguments=tuple(arguments))
    check_program(travelling, program_options, notify, strict=strict)
    place = open_place(on, notify)
    try:
        return submit(place, travelling, program_options, hint=hint, notify=notify)
    except BaseException:
        place.close()
        raise


def check_program(program: TrainingProgram, options: ProgramOptions, notify: Notify, *, strict: bool) -> None:
    """Check a program before a cluster is started for it, and warn if its workers would train separate copies
    of the model.

    Args:
        program: the program.
        options: how it would be run.
        notify: called with the warning.
        strict: whether the warning is an error.

    Raises:
        InvalidError: program and options don't fit.
    """
    render_job(program, options)
    if warning := find_copies(program, options):
        if strict:
            raise InvalidError(f"{CONDITION}: {warning}")
        notify(f"warning: {CONDITION}: {warning}")


def submit(
    place: Place,
    program: TrainingProgram,
    options: ProgramOptions,
    *,
    hint: str,
    name: str = "",
    notify: Notify,
) -> ElasticTraining:
    """Submit a program to a place.

    Args:
        place: the place.
        program: the program.
        options: how to run it; interpreter and folders are completed for the embedded cluster, where the
            program runs in this process's working directory.
        hint: readable part of the job's name.
        name: the job's whole name; "" for one that is derived from `hint`.
        notify: called with lines about the job.

    Raises:
        InvalidError: the options don't fit the place.
        EdlError: the cluster refused the job.
    """
    # Only a name that was given may be in use, and so make this wait.
    identity = StageIdentity.of_person("client", notify if name else notify_nobody)
    job = name or identity.name(hint, names.MAX_JOB_NAME)
    if place.folder is not None:
        checkpoints = options.checkpoints or place.checkpoints(job)
        options = replace(options, python=place.python, checkpoints=checkpoints, folder=str(Path.cwd()))
    elif not options.image and not options.template:
        raise InvalidError(
            "no image: on a cluster, name one that contains edl-workflows and the program's packages "
            "(`--image`, image=); the program itself need not be in it"
        )
    manifest = render_job(program, options)
    manifest["metadata"]["name"] = job
    handle = SUBMIT.begin(place.cluster, SubmitRequest(manifest=manifest, program=program), identity)
    return ElasticTraining(place, handle, notify)


def read_script(path: Path) -> TrainingProgram:
    """The program of a script: its text, and that of the modules and packages of its folder which it imports.

    Raises:
        InvalidError: it can't be read, is not Python, or is too large.
    """
    text = _read(path)
    program = TrainingProgram.of_script(path.name, text)
    return TrainingProgram.of_script(path.name, text, _read_imported_modules(path.parent, program))


def _read_imported_modules(folder: Path, program: TrainingProgram) -> dict[str, str]:
    """The modules and packages of the script's folder that it imports, and those that they import.

    A package travels as a whole, since its modules import each other in ways that the text doesn't show.
    """
    files: dict[str, str] = {}
    imported = set(imported_modules(program))
    found: set[str] = set()
    while roots := {module.partition(".")[0] for module in imported} - found - {_OWN_PACKAGE}:
        for root in sorted(roots):
            found.add(root)
            fresh = _read_module(folder, root, imported)
            fresh.pop(program.main, None)
            files |= fresh
            for name, text in fresh.items():
                imported |= set(imported_modules(TrainingProgram.of_script(Path(name).name, text)))
    return files


def _read_module(folder: Path, root: str, imported: Collection[str]) -> dict[str, str]:
    """The files of a module or package in a folder, as Python would find it there; empty if it is not there.

    Args:
        folder: the script's folder.
        root: the module's name, without dots.
        imported: names of all imported modules. A folder without ``__init__.py`` is a package only if one of
            its modules is imported: it may be a folder of data beside an installed package of that name.
    """
    package, module = folder / root, folder / f"{root}.py"
    if (package / "__init__.py").is_file():
        return _read_package(package)
    if module.is_file():
        return {module.name: _read(module)}
    inner = {name.split(".")[1] for name in imported if name.startswith(f"{root}.")}
    if any((package / f"{name}.py").is_file() or (package / name).is_dir() for name in inner):
        return _read_package(package)
    return {}


def _read_package(package: Path) -> dict[str, str]:
    files: dict[str, str] = {}
    size = 0
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package.parent)
        if not all(part.isidentifier() for part in name.with_suffix("").parts):
            continue  # no import statement reaches it
        size += path.stat().st_size
        if size > MAX_BYTES or len(files) >= MAX_FILES - 1:
            raise InvalidError(
                f"the package in {package} is too large to travel with the job: a program has at most "
                f"{MAX_BYTES} bytes and {MAX_FILES} files; put the package into the image, and the script "
                "into a folder without it"
            )
        files[name.as_posix()] = _read(path)
    return files


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidError(
                f"{path} has more than {MAX_BYTES} bytes; put the code into the image, and keep a short "
                "script that imports it"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"can't read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidError(f"can't read {path}: {error}") from error
