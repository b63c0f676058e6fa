"""The course's engine behind the contract; examples/engines has those of others."""
