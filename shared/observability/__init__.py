"""What a server says about itself: metrics, logs, traces, alerts. Imports nothing of the other layers."""
