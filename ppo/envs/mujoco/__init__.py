"""Gymnasium's MuJoCo v5 tasks, stepped many at a time."""
