"""``python -m edl_workflows``, the same as `edl`: for an interpreter whose `edl` is not on the path."""

import sys

from edl_workflows.pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main())
