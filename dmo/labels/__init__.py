"""Label kernels, label proximities, label hierarchies and stratified splits."""
