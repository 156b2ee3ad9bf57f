"""Model versions side by side: loaded, warmed up, checked, promoted."""
