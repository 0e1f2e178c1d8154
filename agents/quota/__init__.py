"""What a tenant may spend: reserved by admission, settled by settlement, decided in Redis."""
