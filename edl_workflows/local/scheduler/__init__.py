"""Which pods the node takes: a pure plan over requests and capacity, and the loop that binds and explains."""
