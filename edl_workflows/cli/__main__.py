"""``python -m edl_workflows.cli``, the same as `edl` if its script is not on the path."""

import sys

from edl_workflows.cli import main

sys.exit(main())
