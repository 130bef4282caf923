"""Paged KV cache bookkeeping: pages, block tables, prefix reuse. Plain Python over integers; no torch."""
