"""Training data as index ranges: shards that are leased from the master (`shards`), the records of each step
of a collective job (`sampler`), and PyTorch's ``DataLoader`` for them (`torch_data`)."""
