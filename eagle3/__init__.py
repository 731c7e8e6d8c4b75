"""The one-model Eagle3 speculative loop. The package is reserved; its components are not in this release."""
