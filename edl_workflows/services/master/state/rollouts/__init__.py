"""Manual ScalePlans: the state machine of one plan, the checks of its spec, and its effects on the job."""
