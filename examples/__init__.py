"""Complete, runnable uses of Steersman; each sub-package is one."""
