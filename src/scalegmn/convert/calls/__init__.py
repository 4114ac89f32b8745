"""How the tracer handles each operation of a module, by kind."""
