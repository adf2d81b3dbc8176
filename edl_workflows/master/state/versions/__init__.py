"""Cluster versions: which nodes train together, which come next, and the rendezvous of collective jobs."""
