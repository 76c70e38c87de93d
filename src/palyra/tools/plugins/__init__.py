"""Plugins: tools that are WebAssembly modules, each with a manifest that limits what it may do."""
