"""What surrounds machines in a project: accounts, roles, APIs, quotas, buckets."""
