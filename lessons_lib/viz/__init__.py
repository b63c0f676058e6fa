"""Pictures: pure functions of recorded state. Recorded state goes in, a `Picture` with alternative text comes out."""
