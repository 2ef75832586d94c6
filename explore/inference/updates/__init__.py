"""Updates by natural gradient, by reparameterisation, or at a point."""
