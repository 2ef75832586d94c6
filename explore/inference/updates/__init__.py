"""How a posterior learns: by natural gradient, by reparameterisation, or at a point."""
