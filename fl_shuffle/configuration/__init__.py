"""TOML to a frozen, validated configuration.

`sections` has the fields and what each allows, `conflicts` what does not go together, and `reading`
turns files and overrides into a `Config`. Nothing is guessed: a field has the default written there
or the value in the file.
"""
