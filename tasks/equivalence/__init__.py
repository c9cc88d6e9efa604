"""Is an update of several ranks that of one process? The second computation, the certificate, the twins."""
