"""Plugins: tools that are WebAssembly modules, each with a manifest that says what it may do at most."""
