"""Training from Python: the excerpts of docs/how-to/run-your-own-script.md."""

from edl_workflows.pipelines.client import train


def double(rate: float, steps: int) -> dict[str, float]:
    """Runs in each worker; it imports what it uses."""
    import os

    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {rate * steps}", flush=True)
    return {"product": rate * steps}


def main() -> None:
    """Train with two workers, and print their logs."""
    with train(double, {"rate": 0.5, "steps": 4}, workers=2) as training:
        for line in training.logs():
            print(line)
        print(training.result())


if __name__ == "__main__":
    main()
