"""Messages between a job's master and its agents (HTTP + JSON), and what both need to read them. No I/O here."""
