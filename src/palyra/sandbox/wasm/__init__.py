"""WebAssembly modules."""
