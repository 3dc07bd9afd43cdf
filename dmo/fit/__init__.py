"""How a method meets the data: moments of one pass, exact operators, low-rank factors, Krylov subspaces."""
