"""Benchmarks. Each prints its figure beside a ceiling or a rival measured in the same run."""
