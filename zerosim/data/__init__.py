"""The data set that ships with zerosim."""
