"""The subcommands of `exla`, one module each; `exla.cli` says what a module must have."""
