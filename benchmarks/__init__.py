"""What exla promises, measured: `caps` (programs under a hard cap), `untouched` (programs that fit already)."""
