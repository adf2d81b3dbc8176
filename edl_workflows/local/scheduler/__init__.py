"""Decides which pods the node accepts: a pure plan over requests and capacity, and the loop that binds pods
and reports why others wait."""
