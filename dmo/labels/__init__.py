"""Label kernels and proximities."""
