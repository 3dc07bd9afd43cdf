"""The papers' equations, one package a family."""
