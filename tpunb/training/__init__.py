"""What the state of a training is: variables, seeds, callbacks, position in the data; saving and restoring it."""
