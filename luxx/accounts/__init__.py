"""People: tenants, users, sign-ins, settings, and where their files live."""
