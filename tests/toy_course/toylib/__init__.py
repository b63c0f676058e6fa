"""A library of one module, to try the authoring machinery on."""
