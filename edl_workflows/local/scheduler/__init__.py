"""Decides which pods the node accepts: a pure decision over requests and capacity, and the loop that binds
pods and reports why others wait."""
