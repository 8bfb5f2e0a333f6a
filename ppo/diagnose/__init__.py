"""What a user can look at: whether the contract holds in a run, a file, an environment."""
