"""What the pods of a job hold of their nodes, for how long, and what for. Pure.

- `model`: the account in a job's status
- `spans`: what one pod held, and from when to when
- `account`: counts the spans of a job's pods, and divides them by what the job's time was spent on
"""
