"""zerosim."""
