"""The minibatch step as a native function, built for the networks of a run."""
