"""What both safety stages share: phrases, and the policies that open responses are held against."""
