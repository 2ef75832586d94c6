"""The common parts of posteriors: their protocol (`base`), covariances (`structures`), `updates` and predictions."""
