"""Judges what a run measured: equal or not and where first not, by formula or not, as claimed or not."""
