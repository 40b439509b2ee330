"""Adapters for other libraries, one module each. Importing a module needs its library."""
