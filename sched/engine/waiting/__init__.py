"""Jobs that wait: kept aside, held, their groups, reserved hours."""
