"""What was saved, as an artifact: where Argo looks for it, as a table of URIs."""

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.argo.templates.artifacts import saved_artifact

CUT = "{{=sprig.regexReplaceAll('^[A-Za-z][A-Za-z0-9+.-]*://[^/]+/', %s, '')}}"
KEYS = {
    "{{tasks.train.outputs.parameters.checkpoint-uri}}": CUT
    % "tasks.train.outputs.parameters['checkpoint-uri']",
    "{{ steps.train-1.outputs.parameters.uri }}": CUT % "steps['train-1'].outputs.parameters.uri",
    "{{inputs.parameters.checkpoint-uri}}": CUT % "inputs.parameters['checkpoint-uri']",
    "s3://models/digits/{{workflow.name}}/": "digits/{{workflow.name}}",
    "abfs://models@account.dfs.core.windows.net/digits": "digits",
}


@pytest.mark.parametrize("uri", KEYS)
@pytest.mark.parametrize(("file", "below"), [("", ""), ("weights.npy", "/weights.npy")])
def test_the_key_is_what_follows_the_bucket(uri: str, file: str, below: str) -> None:
    """The artifact's key is the part of the URI after the bucket. For a template tag it is an expression that
    Argo evaluates. The artifact has no bucket of its own and is not unpacked."""
    artifact = saved_artifact("checkpoint", uri, file)._build_artifact()

    assert artifact.model_dump(exclude_none=True, by_alias=True) == {
        "name": "checkpoint",
        "archive": {"none": {}},
        "s3": {"key": f"{KEYS[uri]}{below}"},
    }


@pytest.mark.parametrize("uri", ["", "/srv/models", "s3://models", "{{workflow.parameters.store}}/digits"])
def test_a_place_without_a_bucket_is_refused(uri: str) -> None:
    """A URI without a bucket raises InvalidError, which says what to give instead."""
    with pytest.raises(InvalidError, match=r"has no bucket; give a URI such as s3://bucket/folder"):
        saved_artifact("checkpoint", uri)
