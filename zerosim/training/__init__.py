"""The training of a scenario's rows in a world: configs, batches, replicas, and measurements."""
