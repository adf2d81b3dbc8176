"""What an API server with the kinds' definitions answers."""

import copy
from functools import cache

from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.schemas import structural
from edl_workflows.local.apiserver.objects import admission, crds
from edl_workflows.local.apiserver.objects.catalog import ServedResource
from edl_workflows.pipelines.install import crds as crd
from tests.cases.kind import Manifest


def refused_by_server(manifest: Manifest, old: Manifest | None = None) -> str:
    """What the server says against an object, as strict clients ask; "" if it accepts the object."""
    resource = served_resource(manifest["kind"])
    obj = copy.deepcopy(manifest)
    unknown = structural.prune_unknown_fields(obj, resource.schema, root=True)
    structural.set_defaults(obj, resource.schema)
    causes = admission.check_schema(resource, obj, old)
    return "; ".join([*(f'unknown field "{path}"' for path in unknown), *map(str, causes)])


@cache
def served_resource(kind: str) -> ServedResource:
    """A kind as the server serves it."""
    return crds.resources_of_definition(crd.crd_of_kind(kind_of(kind)))[0]
