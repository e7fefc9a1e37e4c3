"""How it is done: one file per action, and the fleets the actions are carried out on."""
