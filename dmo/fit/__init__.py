"""Ways to solve a method on its data: moments of one pass, exact operators, low-rank factors and Krylov subspaces."""
