"""Tensor functions: plain torch references, later Triton twins with the same signature. Knows no request."""
