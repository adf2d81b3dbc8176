"""Messages between a job's master, its agents and the Brain (HTTP + JSON), and what they need to read them. No I/O here."""
