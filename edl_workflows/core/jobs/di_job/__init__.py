"""DIJob, the job kind of OpenDILab's DI-orchestrator: typed, validated and reconciled."""
