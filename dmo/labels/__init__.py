"""Label kernels, proximities, hierarchies and stratification."""
