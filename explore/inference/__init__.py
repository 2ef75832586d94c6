"""The machinery that posteriors share: their protocol, what they are, how they learn, and what they predict.

`base.Predictive` is what every consumer asks; `structures` are covariances, `updates` are steps. May import `core`,
`execution`, `nets` and `registry`.
"""
