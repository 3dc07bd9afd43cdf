"""Web page of `dmo serve`, on which a saved model can be tried; it requires the extra `serve`."""
