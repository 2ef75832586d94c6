"""Training updates: natural gradients, reparameterisation gradients, and point estimates."""
