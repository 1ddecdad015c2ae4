"""A run as one HTML page that needs no network, made from the outcome's JSON document alone."""
