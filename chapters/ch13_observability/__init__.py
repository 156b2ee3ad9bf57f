"""Chapter 13: metrics, logs, traces and alerts: what a server says about itself."""
