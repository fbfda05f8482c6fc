"""EventMQ for the harness hardbyte/postgresql-job-queue-benchmarking of GitHub, by its contract."""
