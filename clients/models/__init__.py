"""Encoders and whole models, plain ``nn.Module``s."""
