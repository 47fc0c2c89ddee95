"""Envoy in front of the sidecar: its config, made from the sidecar's own settings.

`bootstrap` puts the config together, `render` writes it with everything it names, `lint` says
what may never be in it. Nothing here runs in the daemon.
"""
