"""Many runs as one job, and their results: compare, sweep, tune, reproduce."""
