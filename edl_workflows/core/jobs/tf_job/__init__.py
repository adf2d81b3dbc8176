"""TFJob, the job kind of Kubeflow's tf-operator: typed, validated and reconciled."""
