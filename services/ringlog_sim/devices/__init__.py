"""The simulated machine room: time, network, broker, disks, randomness."""
