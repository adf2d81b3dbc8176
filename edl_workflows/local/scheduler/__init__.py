"""Which pods the node accepts: a pure plan over requests and capacity, and the loop that binds pods and
explains refusals."""
