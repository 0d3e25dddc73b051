"""What posteriors are made of: densities, parts that change them, and what can be asked."""
