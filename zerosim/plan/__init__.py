"""What a training run will need, by formula, before it runs."""
