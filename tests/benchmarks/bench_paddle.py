"""PaddlePaddle EDL's experiment with our fulfilment algorithm: ``python -m tests.benchmarks.bench_paddle``.

The limits: autoscaling saves at least as large a part of the pending time in case 1 as the published figures
do, and waits no longer; and it uses at least as much of the CPUs in case 2.
"""

import sys

from edl_workflows.simulator.paddle import (
    MIXED,
    MIXED_FIXED,
    PUBLISHED_CPU,
    PUBLISHED_PENDING,
    TRAINING_ONLY,
    TRAINING_ONLY_FIXED,
    run_case,
)

CASES = {
    "case 1, autoscaled": TRAINING_ONLY,
    "case 1, fixed": TRAINING_ONLY_FIXED,
    "case 2, autoscaled": MIXED,
    "case 2, fixed": MIXED_FIXED,
}


def main() -> int:
    """Run and print; 1 if a limit is missed."""
    outcomes = {case: run_case(case) for case in CASES.values()}
    print("                    pending s  published  CPU used  published  jobs running at the end")
    for name, case in CASES.items():
        found, pending = outcomes[case], PUBLISHED_PENDING.get(case)
        print(
            f"{name:19} {found.pending:9.1f} {'-' if pending is None else pending:>10} {found.cpu:9.1%} "
            f"{PUBLISHED_CPU[case]:10.1%}  {found.running:3} of {case.jobs}"
        )
    scaled, fixed = (outcomes[case].pending for case in (TRAINING_ONLY, TRAINING_ONLY_FIXED))
    least = 1 - PUBLISHED_PENDING[TRAINING_ONLY] / PUBLISHED_PENDING[TRAINING_ONLY_FIXED]
    print(f"case 1 saves {1 - scaled / fixed:.1%} of the pending time; published {least:.1%}")
    met = (
        1 - scaled / fixed >= least
        and scaled <= PUBLISHED_PENDING[TRAINING_ONLY]
        and outcomes[MIXED].cpu >= PUBLISHED_CPU[MIXED]
    )
    print("limits: " + ("met" if met else "NOT met"))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
