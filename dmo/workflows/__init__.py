"""What a script, a notebook and the command line all do: apply, annotate, evaluate, plan, report, search."""
