"""What posteriors are made of: their interface, Gaussian densities, natural gradients, structures, optimisers."""
