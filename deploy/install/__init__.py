"""What brings a bare machine to where Sluice can run. Standard library only."""
