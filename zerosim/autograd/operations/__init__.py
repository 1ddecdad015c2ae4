"""The operations of models, each with forward and backward as plain functions side by side."""
