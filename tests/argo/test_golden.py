"""Each manifest that `edl argo build` writes, compared with a file as data. Rewrite the files with
--update-golden."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.pipelines.argo.lint import check
from edl_workflows.pipelines.argo.templates import catalog
from edl_workflows.pipelines.argo.templates.serializer import to_yaml
from edl_workflows.pipelines.argo.templates.step import WaitMode
from edl_workflows.pipelines.argo.templates.workflows import TemplateOptions
from tests.argo.templates import EXAMPLES, WAYS, example, products

FILES = Path(__file__).parent / "golden"


def _compare(case: str, manifests: list[dict[str, Any]], update: bool) -> None:
    file = FILES / f"{case}.yaml"
    if update:
        file.write_text(to_yaml(manifests))

    recorded = list(yaml.safe_load_all(file.read_text())) if file.exists() else None
    assert recorded == manifests, (
        f"if this change is meant: pytest {__name__.replace('.', '/')}.py --update-golden"
    )


@pytest.mark.parametrize(("name", "options"), products())
def test_products_are_as_recorded(
    name: str, options: TemplateOptions, request: pytest.FixtureRequest, update_golden: bool
) -> None:
    """Each product equals its golden file field by field, without normalisation, so that a lost field is
    noticed."""
    case = request.node.callspec.id

    _compare(case, catalog.build_manifests([name], options, "train"), update_golden)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_as_recorded(name: str, way: WaitMode, update_golden: bool) -> None:
    """The manifests of the example pipelines equal their golden files."""
    _compare(f"{name}-{way}", [example(way, name)], update_golden)


@pytest.mark.parametrize("file", sorted(FILES.glob("*.yaml")), ids=lambda file: file.stem)
def test_manifests_pass_our_own_linter(file: Path) -> None:
    """The linter finds no error in a manifest that we write."""
    findings = [one for manifest in yaml.safe_load_all(file.read_text()) for one in check(manifest)]

    assert [str(one) for one in findings if one.is_error] == []


def test_every_file_has_its_test() -> None:
    """Each golden file belongs to a template that exists."""
    cases = {str(case.id) for case in products()} | {f"{name}-{way}" for name in EXAMPLES for way in WAYS}

    assert {file.stem for file in FILES.glob("*.yaml")} == cases


@pytest.mark.parametrize("file", sorted(FILES.glob("*.yaml")), ids=lambda file: file.stem)
def test_people_can_review_a_manifest(file: Path) -> None:
    """The text of each manifest has at most 900 lines, and contains each list of outputs once: elsewhere it
    is an alias."""
    text = file.read_text()

    assert text == to_yaml(yaml.safe_load_all(text))
    assert len(text.splitlines()) <= 900
    lists = [
        template["outputs"]
        for manifest in yaml.safe_load_all(text)
        for template in manifest.get("spec", {}).get("templates", ())
        if template.get("outputs")
    ]
    assert len({id(outputs) for outputs in lists}) == len({repr(outputs) for outputs in lists})
