"""What to do: decisions, and one file per policy in folders by what they decide."""
