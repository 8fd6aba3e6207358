"""Between the store and a registry: what is missing is fetched, what is new is sent."""
