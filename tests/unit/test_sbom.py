"""The list of what an image holds, and the hashes that it is installed by."""

import json
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from release.sbom import sbom

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_lists_every_distribution_with_its_version() -> None:
    """The list has every distribution of this environment with its version, in the format of CycloneDX."""
    found = json.loads(sbom(distributions(), "an image"))

    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    listed = {(one["name"], one["version"]) for one in found["components"]}
    assert listed == {(one.name, one.version) for one in distributions()}
    assert all(one["purl"].startswith("pkg:pypi/") for one in found["components"])


def test_the_list_is_of_an_unpacked_image(tmp_path: Path) -> None:
    """The command lists what is in the image's environment, and nothing else."""
    folder = tmp_path / "root/opt/edl/lib/python3.12/site-packages/thing-1.2.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.2\n")
    where = [
        "--image",
        "localhost/x:1",
        "--root",
        str(tmp_path / "root"),
        "--output",
        str(tmp_path / "sbom.json"),
    ]
    subprocess.run([sys.executable, "-m", "release.sbom", *where], check=True, cwd=ROOT)

    found = json.loads((tmp_path / "sbom.json").read_text())
    assert [one["purl"] for one in found["components"]] == ["pkg:pypi/thing@1.2"]
    assert found["metadata"]["component"]["name"] == "localhost/x:1"


@pytest.mark.parametrize("name", ["image.txt", "build.txt"])
def test_the_image_is_installed_by_hashes(name: str) -> None:
    """Each version is that of constraints.txt and has hashes, and no address of an index is in the file."""
    text = (ROOT / "requirements" / name).read_text()
    tested = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pins = re.findall(
        r"^([\w.-]+)==([^\s;]+)[^\\\n]*\\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
        text,
        re.MULTILINE,
    )

    assert len(pins) == len(re.findall("^[a-z]", text, re.MULTILINE))
    assert {package: version for package, version, _ in pins if tested.get(package, version) != version} == {}
    assert "://" not in text
    assert (
        f"--require-hashes --no-deps --requirement requirements/{name}"
        in (ROOT / "Containerfile").read_text()
    )
