"""Cluster versions: which nodes train together now and in the next version; rendezvous of collective jobs."""
