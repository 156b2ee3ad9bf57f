"""Several replicas behind one endpoint, on Ray Serve."""
