"""The shared parts of posteriors: base classes (`base`), covariances (`structures`), `updates` and predictions."""
