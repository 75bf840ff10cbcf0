"""Users, tenants, sign-ins and rights."""
