"""The tape and its operations: differentiation that holds activations, never weights."""
