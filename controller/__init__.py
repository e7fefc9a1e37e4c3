"""Who runs it: the ledger, the session, the control loop, the trace and the command line."""
