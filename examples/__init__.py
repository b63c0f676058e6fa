"""What the course itself does not import: engines of others behind the contract, and the bundled model's recipe."""
