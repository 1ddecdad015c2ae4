"""The commands of `zerosim`, a module each: `add_arguments(parser)` and `main(arguments)`."""
