"""The products that `edl argo build` can make, by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.pipelines.argo.templates import access, schedules, workflows
from edl_workflows.pipelines.argo.templates.workflows import TemplateOptions

NIGHTLY = "0 3 * * *"
EVENTS = "elastic-retrain-events"


@dataclass(frozen=True)
class BuildProduct:
    """Manifests under one name.

    Attributes:
        name: name of the product.
        make: makes the manifests from options and a namespace.
        usual: whether it is made when no product is named.
    """

    name: str
    make: Callable[[TemplateOptions, str], list[dict[str, Any]]]
    usual: bool = True


def _template(
    make: Callable[[TemplateOptions], dict[str, Any]],
) -> Callable[[TemplateOptions, str], list[dict[str, Any]]]:
    return lambda options, _namespace: [make(options)]


def _train(kind: str) -> Callable[[TemplateOptions, str], list[dict[str, Any]]]:
    return _template(lambda options: workflows.train(options, f"{kind.lower()}-train", kind))


def _cron(options: TemplateOptions, _namespace: str) -> list[dict[str, Any]]:
    template = workflows.elastic_retrain(_plain(options))
    return [schedules.cron(template, NIGHTLY, options.parameters)]


def _events(options: TemplateOptions, namespace: str) -> list[dict[str, Any]]:
    template = workflows.elastic_retrain(_plain(options))
    account = access.for_events(namespace)
    made = schedules.sensor(template, options.parameters, options.from_event)
    return [*account, schedules.webhook(template), made]


def _plain(options: TemplateOptions) -> TemplateOptions:
    """The options without parameter values: schedules and Sensors pass the values as arguments."""
    return TemplateOptions(options.waiting, options.cluster_scope)


PRODUCTS = (
    BuildProduct("access", lambda options, namespace: access.for_steps(options.waiting, namespace)),
    BuildProduct("edl-stages", _template(workflows.stages)),
    BuildProduct("edl-clean-up", _template(workflows.clean_up)),
    BuildProduct("elastic-train", _template(workflows.train)),
    BuildProduct("elastic-train-and-scale", _template(workflows.train_and_scale)),
    BuildProduct("elastic-scale", _template(workflows.elastic_scale)),
    BuildProduct("elastic-planned-scale", _template(workflows.planned_scale)),
    BuildProduct("ps-checkpoint-migrate-restart", _template(workflows.checkpoint_migrate_restart)),
    BuildProduct("elastic-retrain", _template(workflows.elastic_retrain)),
    *(
        BuildProduct(f"{kind.name.lower()}-train", _train(kind.name))
        for kind in KINDS
        if kind.view is not None and kind.name != ELASTIC_JOB
    ),
    # These need Argo Events, or values that only the user knows.
    BuildProduct("elastic-retrain-cron", _cron, usual=False),
    BuildProduct(EVENTS, _events, usual=False),
)


def build_manifests(names: Iterable[str], options: TemplateOptions, namespace: str) -> list[dict[str, Any]]:
    """The manifests of the named products, or of the usual ones if none is named; all in one namespace.

    Raises:
        InvalidError: there is no such product, or no template has a parameter for which a value was given or
            that events may set.
    """
    products = {product.name: product for product in PRODUCTS}
    requested_names = list(names) or [product.name for product in PRODUCTS if product.usual]
    unknown = [name for name in requested_names if name not in products]
    if unknown:
        raise InvalidError(f"there is no template {unknown[0]!r}; there are {', '.join(products)}")
    if options.from_event and EVENTS not in requested_names:
        raise InvalidError(f"--from-event applies to {EVENTS} only; name this template too")
    made = [manifest for name in requested_names for manifest in products[name].make(options, namespace)]
    _check_parameters(made, options.parameters)
    return [_placed(manifest, namespace) for manifest in made]


def _check_parameters(manifests: Iterable[Mapping[str, Any]], values: Mapping[str, str]) -> None:
    declared = {parameter["name"] for manifest in manifests for parameter in _declared(manifest)}
    for name in values:
        if name not in declared:
            has = ", ".join(sorted(declared)) or "none"
            raise InvalidError(f"no template has a parameter {name!r}; parameters are {has}")


def _declared(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    spec = manifest.get("spec", {})
    spec = spec.get("workflowSpec", spec)
    for trigger in spec.get("triggers", ()):
        spec = trigger["template"]["k8s"]["source"]["resource"]["spec"]
    parameters: list[dict[str, Any]] = spec.get("arguments", {}).get("parameters", [])
    return parameters


def _placed(manifest: dict[str, Any], namespace: str) -> dict[str, Any]:
    if manifest["kind"] == "ClusterWorkflowTemplate":
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
