"""Nodes of a job: the registry, replacement of failed nodes, the check before training, hangs, and pod
requests.
"""
