"""What a stage waits for, whose object it is, and what it reports.

- `identity`, `ownership`: who runs a stage; stages create or adopt objects, and cancel nothing else
- `goals`, `observed`: what a stage waits for, and the object that it observes
- `results`, `outputs`, `advised_change`, `failed_pod`: how a wait ends, and what it returns
- `job_log`, `training_logs`, `queueing`: what a wait writes while it lasts
"""
