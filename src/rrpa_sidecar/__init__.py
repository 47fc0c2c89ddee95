"""rrpa-sidecar: token bytes from shared memory to gRPC clients."""

__version__ = "0.1.0"
