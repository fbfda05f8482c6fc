"""Worker pools: `prefork` runs jobs in processes, `threads` in threads of the job manager."""
