"""Makes what a training has saved an input artifact of a later step. Argo downloads it from where it was
saved; the training step copies nothing.

The folder that the training saves to must lie in the bucket of Argo's artifact repository: the artifact has a
key only, and Argo takes bucket, endpoint and credentials from the repository.
"""

import re

from hera.workflows import NoneArchiveStrategy, S3Artifact

from edl_workflows.core.exceptions import InvalidError

__all__ = ["saved_artifact"]

_BUCKET = "^[A-Za-z][A-Za-z0-9+.-]*://[^/]+/"
"""Scheme and bucket of a URI, for Go's and Python's regular expressions alike."""
_TAG = re.compile(r"^{{ *([A-Za-z]+)((?:\.[A-Za-z0-9_-]+)+) *}}$")


def saved_artifact(name: str, uri: str, file: str = "") -> S3Artifact:
    """An argument for an input artifact of a step: the file or folder at a URI.

    Args:
        name: name of the input artifact.
        uri: the folder or object. Either one tag, such as ``groups.output(trained, "checkpoint-uri")``, or a
            text such as ``s3://models/{{workflow.name}}`` where the training program exports its model.
        file: path below the URI; "" for all that is there.

    Raises:
        InvalidError: the URI is neither one tag nor a URI with a bucket.
    """
    below = f"/{file}" if file else ""
    # Argo must not unpack a file that looks like a tarball. An artifact without a bucket may be written as an
    # S3 artifact for any kind of repository, because Argo uses only its key.
    return S3Artifact(name=name, key=_key(uri) + below, archive=NoneArchiveStrategy())


def _key(uri: str) -> str:
    if tag := _TAG.match(uri):
        return f"{{{{=sprig.regexReplaceAll('{_BUCKET}', {_variable(*tag.groups())}, '')}}}}"
    if bucket := re.match(_BUCKET, uri):
        return uri[bucket.end() :].rstrip("/")
    raise InvalidError(
        f"the artifact is at {uri!r}, which has no bucket; give a URI such as s3://bucket/folder, or the "
        'output of a step, as groups.output(trained, "checkpoint-uri")'
    )


def _variable(root: str, rest: str) -> str:
    """A tag's variable as an expression refers to it: names with hyphens must be written as indices."""
    return root + "".join(f"['{part}']" if "-" in part else f".{part}" for part in rest.split(".")[1:])
