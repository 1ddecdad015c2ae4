"""Exercises graded: what holds of a learner's functions, and the smallest example of what does not."""
