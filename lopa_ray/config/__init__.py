"""Settings of groups and of requests, validated when made. They build no object that decodes."""
