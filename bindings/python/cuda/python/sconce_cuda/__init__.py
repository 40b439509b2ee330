"""The extension module of `sconce`, built with CUDA. Use `import sconce`, which finds it."""

from . import _sconce as _sconce
