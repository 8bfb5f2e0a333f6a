"""Sweeps over configuration keys, and the report on their runs."""
