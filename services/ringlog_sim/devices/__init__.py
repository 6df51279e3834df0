"""The simulated devices: time, network, broker, disks, randomness."""
