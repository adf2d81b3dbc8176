"""What Kubeflow's kinds, TrainingJob and DIJob share: kinds whose pods the controller makes itself, one for
each replica.
"""
