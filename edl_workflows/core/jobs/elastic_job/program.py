"""A training program that travels with its job: the text of a Python script or function, in a ConfigMap.

The ConfigMap is named after the job and the program's digest. Each pod receives the program in an environment
variable, together with the digest, and `edl_workflows.training.program` writes it to a file and runs it. The
program is text and its arguments are JSON: nothing is pickled. Larger programs belong in an image.
"""

import ast
import builtins
import hashlib
import json
import re
import symtable
import textwrap
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.manifests import elastic_job_child, merge_env, owner_reference
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import Model, Resource

MAX_BYTES = 96 * 1024
"""Size of a program with all its files. Linux passes at most 128 KiB in one environment variable."""
MAX_FILES = 32
_BYTE_ORDER_MARK = "\ufeff"
PROGRAM_KEY = "program.json"
"""The key in the ConfigMap."""
DIGEST_CHARACTERS = 10
_FILE_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_-]{0,96}/){0,8}[A-Za-z0-9_][A-Za-z0-9_.-]{0,96}\.py")
"""No path leaves the program's folder, and no name is taken for an option of Python."""
TMP, TMP_VOLUME = "/tmp", "edl-tmp"  # noqa: S108 - in a pod
_MODULE_NAMES = frozenset(dir(builtins)) | {"__name__", "__file__", "__builtins__"}
"""Names that every program has."""
# Annotations may use names that the function's module imports, because they are not evaluated.
_HEAD = "from __future__ import annotations\n\n"

_CALL = """

if __name__ == "__main__":
    from edl_workflows.training.function import call_function

    call_function({function}, {arguments!r})
"""


class TrainingProgram(Model):
    """A Python program of one or more files in one folder, and in packages below it.

    Attributes:
        main: name of the file that is run.
        files: file name, relative to the folder → text.
    """

    main: str
    files: dict[str, str] = Field(min_length=1, max_length=MAX_FILES)

    @field_validator("files")
    @classmethod
    def _are_named(cls, files: dict[str, str]) -> dict[str, str]:
        for name in files:
            if not _FILE_NAME.fullmatch(name):
                raise ValueError(
                    f"{name[:80]!r}: a file's name ends with .py, such as train.py, and consists of at most "
                    "100 letters, digits, '_', '-' and '.', the first of them no '-' or '.'; the folders of "
                    "a package, at most 8, are named likewise, without '.'"
                )
        return files

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.main not in self.files:
            raise ValueError(f"the main file {self.main!r} is not among the files {sorted(self.files)}")
        if "/" in self.main:
            raise ValueError(
                f"{self.main[:80]!r}: a file's name ends with .py and has no folder, if it is run"
            )
        size = len(self.text.encode("utf-8", "surrogatepass"))
        if size > MAX_BYTES:
            raise ValueError(
                f"the program has {size} bytes and may have {MAX_BYTES}; put the code into the image, and "
                "keep a short script that imports it"
            )
        return self

    @classmethod
    def of_script(cls, name: str, text: str, modules: Mapping[str, str] | None = None) -> Self:
        """Make the program of a script.

        Args:
            name: file name of the script.
            text: its text. A byte order mark is left out.
            modules: further modules of its folder and of packages there, by file name.

        Raises:
            InvalidError: a file is not valid Python, the program is too large, or a file's name is not
                allowed.
        """
        files = {**(modules or {}), name: text}
        files = {file: content.removeprefix(_BYTE_ORDER_MARK) for file, content in files.items()}
        for file, content in files.items():
            _parse(content, file)
        return cls._checked(name, files)

    @classmethod
    def of_function(cls, source: str, arguments: Mapping[str, Any] | None = None) -> Self:
        """The program that calls a function once, and reports what it returns (see
        `edl_workflows.training.function.call_function`).

        Only the function's own text is run, without the rest of its module. So it must do its imports inside
        its body, and cannot use variables of its module.

        Args:
            source: text of the function, as `inspect.getsource` returns it. Its decorators are left out.
            arguments: arguments by name; JSON values.

        Raises:
            InvalidError: `source` is not that of one function, the function uses a name of its module, an
                argument is not a JSON value or has a key that is no text, or the program is too large.
        """
        text, name = _without_decorators(source)
        _refuse_outer_names(text, name)
        try:
            values = json.dumps(dict(arguments or {}), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidError(
                f"the arguments of {name} must be JSON values, since they travel as text: {error}"
            ) from error
        if place := find_key_without_text(arguments or {}):
            raise InvalidError(
                f"the arguments of {name}: {place}, which JSON would make a text; write the key as a text, "
                "and convert it in the function"
            )
        main = "program.py"
        return cls._checked(main, {main: _HEAD + text + _CALL.format(function=name, arguments=values)})

    @classmethod
    def _checked(cls, main: str, files: Mapping[str, str]) -> Self:
        try:
            return cls(main=main, files=dict(files))
        except ValidationError as error:
            message = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
            raise InvalidError(f"the program can't travel with its job: {message}") from error

    @property
    def text(self) -> str:
        """The program as pods receive it."""
        return json.dumps({"main": self.main, "files": self.files}, sort_keys=True, ensure_ascii=False)

    @property
    def digest(self) -> str:
        """SHA-256 of `text`, in hexadecimal digits."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()

    def config_map_name(self, job: str) -> str:
        """Name of the ConfigMap of a job's program."""
        return f"{job}-program-{self.digest[:DIGEST_CHARACTERS]}"

    def to_config_map(self, owner: Resource) -> dict[str, Any]:
        """The ConfigMap with this program. It is deleted with its job.

        Args:
            owner: the job, as the API server returned it.
        """
        name = self.config_map_name(owner.metadata.name)
        head = elastic_job_child("v1", "ConfigMap", name, owner, {})
        # The reference does not say ``controller``: only the installation's controller may create objects
        # that a job controls, and this one is created by whoever submits the job.
        head["metadata"]["ownerReferences"] = [owner_reference(owner, controller=False)]
        return head | {"immutable": True, "data": {PROGRAM_KEY: self.text}}

    def attach(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """The manifest of an ElasticJob, changed so that its training containers receive this program. A
        container with a read-only root filesystem gets an empty volume at `TMP`, where the program is
        written, unless its template mounts something there.

        Args:
            manifest: the manifest, with the job's name.
        """
        source = {"name": self.config_map_name(manifest["metadata"]["name"]), "key": PROGRAM_KEY}
        variables: list[dict[str, Any]] = [
            {"name": names.ENV_PROGRAM, "valueFrom": {"configMapKeyRef": source}},
            {"name": names.ENV_PROGRAM_DIGEST, "value": self.digest},
        ]
        spec = dict(manifest["spec"])
        spec["replicaSpecs"] = {
            role: replicas if role == names.MASTER_TYPE else _with_program(replicas, variables)
            for role, replicas in spec["replicaSpecs"].items()
        }
        return {**manifest, "spec": spec}


def _parse(text: str, file: str) -> ast.Module:
    try:
        text.encode()
        return ast.parse(text, file)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise InvalidError(f"{file}{line}: this is not valid Python: {reason}") from error


def find_key_without_text(value: Any, path: str = "") -> str:
    """Where a value has a key that is no text; empty if it has none. JSON makes texts of such keys, which the
    function would not find."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            if not isinstance(key, str):
                return f"{path or 'the map'} has the key {key!r:.80}"
            if place := find_key_without_text(child, f"{path}.{key}" if path else key):
                return place
    elif isinstance(value, list | tuple):
        places = (find_key_without_text(child, f"{path}[{index}]") for index, child in enumerate(value))
        return next(filter(None, places), "")
    return ""


def _without_decorators(source: str) -> tuple[str, str]:
    """The text of a function without indentation and decorators, and the function's name."""
    text = textwrap.dedent(source).strip("\n") + "\n"
    statements = _parse(text, "the function").body
    if len(statements) != 1 or not isinstance(statements[0], ast.FunctionDef):
        raise InvalidError(
            "the source is not that of one function: write `def train(...): ...`; a lambda, a method or an "
            "`async def` can't be the training program"
        )
    function = statements[0]
    return "".join(text.splitlines(keepends=True)[function.lineno - 1 :]), function.name


def _refuse_outer_names(text: str, function: str) -> None:
    """Refuse a function that uses names of the module or function around it: they don't travel.

    Raises:
        InvalidError: it does; the message names them.
    """
    tree = _Unannotated().visit(_parse(text, "the function"))
    top = symtable.symtable(ast.unparse(ast.fix_missing_locations(tree)), function, "exec")
    used: set[str] = set()
    made = {function}
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is top or symbol.is_global():
                (made if symbol.is_assigned() or symbol.is_imported() else used).add(symbol.get_name())
    outer = sorted(used - made - _MODULE_NAMES)
    if outer:
        raise InvalidError(
            f"the function {function} uses {', '.join(outer)} of the module around it, which does not travel "
            "with it: import inside the function what it uses, and pass values as arguments"
        )


class _Unannotated(ast.NodeTransformer):
    """Removes annotations, since the program does not evaluate them."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _with_program(replicas: Mapping[str, Any], variables: list[dict[str, Any]]) -> dict[str, Any]:
    template = dict(replicas["template"])
    spec = dict(template["spec"])
    first, *remaining_containers = spec["containers"]
    first = {**first, "env": merge_env(first.get("env") or (), variables)}
    mounts = first.get("volumeMounts") or []
    read_only = (first.get("securityContext") or {}).get("readOnlyRootFilesystem")
    if read_only and not any(str(mount.get("mountPath", "")).rstrip("/") == TMP for mount in mounts):
        first["volumeMounts"] = [*mounts, {"name": TMP_VOLUME, "mountPath": TMP}]
        spec["volumes"] = [*(spec.get("volumes") or []), {"name": TMP_VOLUME, "emptyDir": {}}]
    spec["containers"] = [first, *remaining_containers]
    return {**replicas, "template": {**template, "spec": spec}}
