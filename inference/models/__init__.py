"""Decoder models by configuration, and the loaders that fill them from GGUF and safetensors."""
