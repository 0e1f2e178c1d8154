"""What a gateway does for its clients, whatever they speak: accept, resume, cancel, look up."""
