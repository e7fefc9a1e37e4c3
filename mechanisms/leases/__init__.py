"""A fleet whose attempts are carried out by somebody else's client, under leases."""
