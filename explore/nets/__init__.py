"""Networks that take their weights as arguments, likelihoods for their outputs, and a zoo of architectures."""
