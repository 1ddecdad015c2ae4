"""A scenario's rows in a world: what each trains, on which batches, with what; and what is measured of it."""
