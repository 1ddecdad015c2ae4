"""What models are made of: operations, each with forward and backward as plain functions beside each other."""
