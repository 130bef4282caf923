"""The command `quarry`: a thin skin over the other packages. No logic lives here that a program could want to call."""
