"""Why the controller did what it did: a trace, told decision by decision."""
