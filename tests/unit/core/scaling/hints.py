"""What a job reports to Pollux, for tests."""

from typing import Any

HINTS: dict[str, Any] = {
    "initBatchSize": 128,
    "maxBatchSize": 1280,
    "localBszBounds": [64, 256],
    "gradientAccumulation": True,
    "maxProfiledReplicas": 2,
    "gradParams": {"norm": 0.00136, "var": 0.00502},
    "perfParams": {
        "alpha_c": 0.121,
        "beta_c": 0.00568,
        "alpha_n": 0.0236,
        "beta_n": 0.00634,
        "alpha_r": 0.0118,
        "beta_r": 0.00317,
        "gamma": 1.14,
    },
}
"""AdaptDL's scheduling hints."""
