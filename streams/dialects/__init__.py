"""How clients speak: pure translation between wire formats and the neutral request."""
