"""``python -m edl_workflows.cli``: `edl` where its script is not on the path."""

import sys

from edl_workflows.cli import main

sys.exit(main())
