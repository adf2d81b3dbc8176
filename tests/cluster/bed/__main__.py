"""The test bed by hand: ``python -m tests.cluster.bed missing|build|up|status|down``."""

import argparse
import sys
import time
from pathlib import Path

from tests.cluster.bed import build, lifecycle
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.components import Site, default_site
from tests.cluster.bed.node import Network
from tests.cluster.bed.process import BedError

_DEFAULT = default_site()


def main() -> int:
    """Run one command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.bed", description=__doc__)
    parser.add_argument("command", choices=["missing", "build", "up", "status", "down"])
    parser.add_argument("--dir", type=Path, default=_DEFAULT.folder, help="the bed's state (%(default)s)")
    parser.add_argument(
        "--network",
        type=int,
        default=_DEFAULT.network.number,
        help="N of its addresses 10.N.0.0/16 (%(default)s)",
    )
    parser.add_argument(
        "--bind", type=Path, action="append", default=[], help="one more folder that every container sees"
    )
    given = parser.parse_args()
    site = Site(given.dir.absolute(), build.BIN, Network(given.network), (*_DEFAULT.binds, *given.bind))
    began = time.monotonic()
    try:
        code = _COMMANDS[given.command](site)
    except BedError as error:
        print(f"test bed: {error}", file=sys.stderr)
        return 1
    if given.command in ("build", "up", "down"):
        print(f"test bed: {given.command} took {time.monotonic() - began:.1f} s", file=sys.stderr)
    return code


def _missing(_site: Site) -> int:
    lack = build.missing()
    print(lack or "nothing is missing")
    return 1 if lack else 0


def _build(_site: Site) -> int:
    build.build()
    return 0


def _up(site: Site) -> int:
    build.build()
    lifecycle.up(site)
    print(f"export KUBECONFIG={site.kubeconfig} EDL_TEST_CLUSTER=existing")
    return 0


def _status(site: Site) -> int:
    if not (site.folder / "bed.json").exists():
        print(f"no test bed in {site.folder}")
        return 1
    for daemon in Bed.load(site.kubeconfig).daemons:
        print(f"{daemon.name:12} {daemon.pid or 'not running'}")
    return 0 if lifecycle.running(site.folder) else 1


def _down(site: Site) -> int:
    lifecycle.down(site)
    return 0


_COMMANDS = {"missing": _missing, "build": _build, "up": _up, "status": _status, "down": _down}


if __name__ == "__main__":
    sys.exit(main())
