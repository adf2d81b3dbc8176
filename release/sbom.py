"""Lists all distributions of an environment or image in a CycloneDX document: ``python -m release.sbom``."""

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

VERSION = SchemaVersion.V1_6
_ENVIRONMENT = "opt/edl/lib"
"""Of the image, below its root."""


def sbom(found: Iterable[Distribution], name: str) -> str:
    """The document, as validated JSON.

    Args:
        found: what it lists.
        name: of what holds them, as an image's.

    Raises:
        ValueError: it does not keep to CycloneDX's schema.
    """
    bom = Bom()
    bom.metadata.component = Component(name=name, type=ComponentType.CONTAINER, bom_ref=name)
    for one in found:
        purl = PackageURL("pypi", name=one.name.lower().replace("_", "-"), version=one.version)
        bom.components.add(Component(name=one.name, version=one.version, purl=purl, bom_ref=str(purl)))
    bom.register_dependency(bom.metadata.component, bom.components)
    text: str = make_outputter(bom, OutputFormat.JSON, VERSION).output_as_string(indent=2)
    if problem := JsonStrictValidator(VERSION).validate_str(text):
        raise ValueError(f"the SBOM of {name} is no valid CycloneDX: {problem}")
    return text + "\n"


@contextlib.contextmanager
def _root_of(image: str) -> Iterator[Path]:
    """The file system of an image of buildah's storage, mounted."""
    container = _buildah("from", image)
    try:
        yield Path(_buildah("mount", container))
    finally:
        _buildah("rm", container)


def _buildah(*arguments: str) -> str:
    return subprocess.run(
        ["buildah", *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def _installed(root: Path) -> list[Distribution]:
    paths = [str(path) for path in sorted((root / _ENVIRONMENT).glob("python3*/site-packages"))]
    if not paths:
        sys.exit(f"{root}: there is no {_ENVIRONMENT}/python3*/site-packages: is this our image?")
    return list(distributions(path=paths))


def main() -> None:
    """Write the document of an image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", required=True, help="in buildah's storage")
    parser.add_argument(
        "--root", type=Path, help="its unpacked file system; mounted by buildah if this is left out"
    )
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    with contextlib.nullcontext(given.root) if given.root else _root_of(given.image) as root:
        given.output.write_text(sbom(_installed(root), given.image))


if __name__ == "__main__":
    main()
