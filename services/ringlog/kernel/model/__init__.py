"""The parts of the state: values that commands change and the fold carries on."""
