"""ElasticJob, DLRover's kind: a training job whose workers and parameter servers may change while it runs."""
